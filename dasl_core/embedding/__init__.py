"""Use of a trained backbone: features of images, their files, nearest neighbors, and evaluations.

The backbone is loaded from a checkpoint's folder. Images are decoded, normalized and batched as in the evaluations of its
training, and the network runs in the same precision, so its features are the same.
"""

from dasl_core.embedding.backbone import TrainedBackbone, load_backbone
from dasl_core.embedding.evaluation import evaluate_backbone
from dasl_core.embedding.features import FeatureBatch, ImagesWithFeatures
from dasl_core.embedding.files import read_parts, write_parts
from dasl_core.embedding.neighbors import NeighborIndex
from dasl_core.embedding.query import QueryEncoder

__all__ = [
    "FeatureBatch",
    "ImagesWithFeatures",
    "NeighborIndex",
    "QueryEncoder",
    "TrainedBackbone",
    "evaluate_backbone",
    "load_backbone",
    "read_parts",
    "write_parts",
]
