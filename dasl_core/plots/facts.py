"""Facts about a run for the titles and captions of plots."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from dasl_core.headlines import format_metric, metric_label
from dasl_core.spec import METHODS, ResolvedJobSpec
from dasl_core.verdict import Anchors
from dasl_core.vocabulary import BEFORE_TRAINING, Subject

Record = Mapping[str, Any]
"""An evaluation: step, epoch, subject and metrics, as in the progress of a run."""


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run for its plots.

    Attributes:
        searched: number of training images searched for neighbors.
        classes: number of classes; None without labels.
        evaluations: oldest first.
        losses: mean loss of each epoch, NaN where none was finite.
        epochs: means of step metrics of each epoch, by name.
        verdict: message of the verdict; None without one.
        automatic: settings with the value that "auto" chooses.
        certificate: SHA-256 of the certificate of the last checkpoint, if there is one.
    """

    spec: ResolvedJobSpec
    day: date
    images: int
    train_images: int
    held_out: int
    searched: int
    classes: int | None
    anchors: Anchors
    evaluations: Sequence[Record] = ()
    losses: Sequence[float] = ()
    epochs: Sequence[Mapping[str, float]] = ()
    verdict: str | None = None
    steps_per_epoch: int = 0
    automatic: frozenset[str] = frozenset()
    certificate: str | None = None

    @property
    def method(self) -> str:
        """The method and its regularizers, as papers write them: `SimCLR + DAR`."""
        about = METHODS[self.spec.method.name].__doc__ or self.spec.method.name
        parts = [re.split(r"\s*[(:]", about, maxsplit=1)[0]]
        parts += [settings.title for settings in self.spec.active_regularizers().values()]
        return " + ".join(parts)

    @property
    def subtitle(self) -> str:
        """Data set, method, network, images and day, on one line."""
        spec = self.spec
        evaluated = "" if spec.evaluate.dataset is None else f" of {spec.evaluate.dataset}"
        parts = [
            spec.dataset,
            self.method,
            f"{spec.backbone.name} at {spec.backbone.image_size} px",
            f"{count(self.train_images, 'training image')}, {self.held_out:,} held out{evaluated}",
            f"{self.day.day} {self.day:%B %Y}",
        ]
        return " · ".join(parts)

    def series(self, metric: str, *subjects: Subject) -> list[tuple[float, float]]:
        """Return (epoch, value) of a metric at the start and at all evaluations of some subjects."""
        return [
            (float(e["epoch"]), float(e["metrics"][metric]))
            for e in self.evaluations
            if e["subject"] in subjects and isinstance(e["metrics"].get(metric), int | float)
        ]

    def before(self, metric: str) -> float | None:
        """Return a metric of the network before training."""
        values = self.series(metric, *BEFORE_TRAINING)
        return values[0][1] if values else None

    def raw(self, metric: str) -> float | None:
        """Return a metric of raw pixels."""
        values = self.series(metric, "raw")
        return values[0][1] if values else None

    def resolution(self, metric: str) -> str:
        """Describe the resolution of an accuracy on few images: `30 images; one is 3.3 %`."""
        if self.held_out < 1:
            return ""
        images = count(self.held_out, "image")
        return (
            images
            if self.held_out > 1000
            else f"{images}; one is {format_metric(metric, 1 / self.held_out)}"
        )


def count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 image`, `2,000 images`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def metric_title(metric: str) -> str:
    """Return the name of a metric as a title, capitalized except `k-NN`."""
    name = metric_label(metric).replace("_", " ")
    return name if name.startswith("k-") else name[0].upper() + name[1:]
