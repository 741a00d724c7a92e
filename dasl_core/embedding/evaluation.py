"""Evaluation of a trained backbone on another data set, as in training."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dasl_core.data.image_set import ImageSet
from dasl_core.data.index import DatasetIndex
from dasl_core.data.split import split
from dasl_core.embedding.backbone import TrainedBackbone
from dasl_core.spec import ResolvedEvaluate
from dasl_core.train.data import check_readable, open_canvases
from dasl_core.train.evaluation import Evaluator

Metrics = dict[str, float]


class Evaluated(NamedTuple):
    """Metrics of `evaluate_backbone`, and the number of evaluated images."""

    metrics: dict[str, Metrics]
    images: int


def evaluate_backbone(
    backbone: TrainedBackbone,
    index: DatasetIndex,
    name: str,
    settings: ResolvedEvaluate,
    *,
    cache: Path | None,
    threads: int,
    on_decoded: Callable[[int], None] = lambda images: None,
    at_work: Callable[[], None] = lambda: None,
) -> Evaluated:
    """Compute all metrics of the held-out images, by subject: "backbone", and "raw" for raw pixels if measured.

    The other images are the k-NN bank and the training images of the probes.

    Args:
        name: name of the data set, for messages.
        settings: result of `dasl_core.spec.finished.resolve_evaluation`.
        cache: as in `ImagesWithFeatures`, like `threads` and `on_decoded`.
        at_work: called repeatedly during all other work; may raise to end it.

    Raises:
        ValueError: too many images cannot be read, or the settings do not fit those that can.
    """
    spec = backbone.spec.model_copy(update={"evaluate": settings})
    backbone = replace(backbone, spec=spec)
    with closing(open_canvases(spec, index, cache, threads, on_decoded)) as canvases:
        check_readable(name, index, canvases.unreadable)
        parts, damaged = split(index, settings.holdout), list(canvases.unreadable)
        train = ImageSet(canvases, np.setdiff1d(parts.train, damaged))
        held_out = ImageSet(canvases, np.setdiff1d(parts.held_out, damaged))
        if settings.holdout is None:
            train, held_out = held_out, train
        if not len(held_out):
            raise ValueError(f"none of the images of {name} that can be read is held out")
        evaluator = Evaluator(
            settings, backbone.encoder(keepalive=at_work, check=at_work), train, held_out
        )
        metrics = {}
        if raw := evaluator.raw_pixels():
            metrics["raw"] = raw
        # Fine-tuning trains a copy.
        backbone.network.requires_grad_(bool(settings.finetune))
        metrics["backbone"] = evaluator.backbone(backbone.network, final=True)
        return Evaluated(metrics, len(held_out))
