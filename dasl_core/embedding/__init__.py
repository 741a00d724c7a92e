"""A finished backbone at work: features of images, their files, their nearest neighbors, and evaluations.

A backbone is that of a checkpoint's folder. Images are decoded, normalized and batched as the evaluations of its training
do, and the network runs in the same precision, so that its features are the same.
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
