"""Features of single image files, as in an embedding of a data set."""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dasl_core.data.decode import decode, read_header
from dasl_core.data.ingest import ingest_folder
from dasl_core.embedding.backbone import TrainedBackbone
from dasl_core.embedding.features import ImagesWithFeatures
from dasl_core.spec import DatasetFacts
from dasl_core.spec.finished import images_problem
from dasl_core.vocabulary import FeatureKind


class QueryEncoder:
    """Embeds single image files, with the decoder, canvas, crop and normalization of data sets.

    Args:
        facts: facts about the data set to compare with, to whose type values are converted.
    """

    def __init__(self, backbone: TrainedBackbone, facts: DatasetFacts, kind: FeatureKind) -> None:
        self.backbone, self.facts, self.kind = backbone, facts, kind

    def embed(self, content: bytes) -> Tensor:
        """Return the features (d,) of an image file's content; a ValueError says why it is unreadable or unfit."""
        with tempfile.TemporaryDirectory(prefix="dasl-query-") as name:
            # The extension matters only if the content does not tell the format.
            file = Path(name) / "image.png"
            file.write_bytes(content)
            with file.open("rb") as opened:
                # Both raise a reason without a path.
                header = read_header(opened, file.name)
                opened.seek(0)
                decode(opened, file.name, header.bands, header.dtype)
            index = ingest_folder(name, 1)
            # Decoding converts its values to those of the data set.
            dtype = self.facts.dtype
            facts = index.facts().model_copy(update={"dtype": dtype, "quantiles": None})
            backbone = self.backbone.spec.backbone
            if problem := images_problem("the image", facts, self.facts, backbone):
                raise ValueError(f"it {problem.message}")
            index = replace(index, pixels=replace(index.pixels, dtype=dtype))
            images = ImagesWithFeatures(self.backbone, index, cache=None, threads=1)
            try:
                [batch] = images.batches(self.kind)
            except ValueError as error:
                reason = next(iter(images.unreadable.values()), str(error))
                raise ValueError(reason) from error
            finally:
                images.close()
        return torch.from_numpy(batch.features[0])
