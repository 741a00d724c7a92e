"""Advice on what a spec leaves open, by facts about the images and the speed of the machine.

The form of the page, `dasl submit` and `dasl init` show the same advice.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import SpecError
from dasl_core.spec.resolve.epochs import FEWEST as FEWEST_EPOCHS
from dasl_core.spec.resolve.estimate import MOST_AROUND
from dasl_core.spec.resolve.facts import DatasetFacts, training_images
from dasl_core.spec.resolved import ResolvedJobSpec
from dasl_core.spec.yaml import apply_overrides
from dasl_core.text import counted
from dasl_core.verdict import FEWEST_IMAGES

# A first job takes at most this, by the upper bound of its time; with too few images for a verdict, it is a trial.
LONGEST_SECONDS, TRIAL_SECONDS = 600.0, 120.0
# Largest fraction to hold out for a meaningful accuracy.
_LARGEST_HOLDOUT = 0.3
# In pixels, largest first; below, photographs lose what is to be learned.
_SMALLER_SIZES = (160, 128, 96)
# For a first look where even these take long.
_SMALL_NETWORK = "test_resnet"

Settings = dict[str, int | float | str]
"""Values by dotted fields."""
Bounds = tuple[float, float]
"""Lower and upper bound of a job's seconds."""
Resolve = Callable[[JobSpec], ResolvedJobSpec]
Estimated = Callable[[ResolvedJobSpec], Bounds | None]


@dataclass(frozen=True)
class Advice:
    """Settings that fit better than what a spec leaves open.

    Attributes:
        field: the field that it is about, such as `augment.flip`.
        reason: sentences for people.
        settings: values by dotted fields; empty if no setting helps.
    """

    field: str
    reason: str
    settings: Settings


def advise(
    spec: JobSpec, facts: DatasetFacts, resolve: Resolve, estimated: Estimated
) -> list[Advice]:
    """Return advice on the fields that a spec does not set.

    Args:
        spec: a spec that can be resolved.
        facts: facts about its data set.
        resolve: resolves other specs on the same data set and machine.
        estimated: returns a job's time on this machine; None if it is not known.
    """
    advice = []
    for each in (*_flip(spec, facts), *_holdout(spec, facts)):
        changed = _try(spec, each.settings, resolve)
        if changed is not None:
            spec = changed[0]
            advice.append(each)
    too_few = facts.num_images * _LARGEST_HOLDOUT < FEWEST_IMAGES
    longest = TRIAL_SECONDS if too_few else LONGEST_SECONDS
    return [*advice, *_first_look(spec, longest, resolve, estimated)]


def apply(content: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a copy of a spec's content with settings by dotted fields."""
    return apply_overrides(content, (f"{field}={value}" for field, value in settings.items()))


def describe_times(bounds: Bounds) -> str:
    """Describe bounds in minutes, or in hours where they are that long."""
    unit, seconds = ("hour", 3600.0) if bounds[0] >= 7200 else ("minute", 60.0)
    low, high = (max(1, round(bound / seconds)) for bound in bounds)
    range_ = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{range_} {unit}{'' if high == 1 else 's'}"


def _flip(spec: JobSpec, facts: DatasetFacts) -> Iterator[Advice]:
    if facts.has_dicom and "flip" not in spec.augment.model_fields_set:
        reason = "There are DICOM files, and in medical images left and right usually differ: no view should be mirrored."
        yield Advice("augment.flip", reason, {"augment.flip": 0.0})


def _holdout(spec: JobSpec, facts: DatasetFacts) -> Iterator[Advice]:
    holdout, images = spec.evaluate.holdout, facts.num_images
    held_out = images - training_images(spec, facts)
    if spec.evaluate.dataset is not None or holdout is None or held_out >= FEWEST_IMAGES:
        return
    if holdout.by != "image" or "fraction" in holdout.model_fields_set:
        return
    field, fraction = "evaluate.holdout.fraction", math.ceil(100 * FEWEST_IMAGES / images) / 100
    reason = (
        f"The default holds out {counted(held_out, 'image')}, and fewer than {FEWEST_IMAGES} held-out images decide "
        "nothing, as the verdict will say"
    )
    if fraction <= _LARGEST_HOLDOUT:
        yield Advice(field, f"{reason}.", {field: fraction})
    else:
        reason += (
            f"; {FEWEST_IMAGES} would be more than {_LARGEST_HOLDOUT:.0%} of the images. More images help, or a data set "
            "of its own in evaluate.dataset."
        )
        yield Advice(field, reason, {})


def _first_look(
    spec: JobSpec, longest: float, resolve: Resolve, estimated: Estimated
) -> Iterator[Advice]:
    """Yield settings with which the job ends within seconds, or not long after.

    Fewer pixels come first, then fewer epochs. If these become too few, a cheaper network follows.
    """
    automatic = chosen = resolve(spec)
    before = bounds = estimated(automatic)
    if before is None or bounds is None or bounds[1] <= longest:
        return
    epochs, is_open = automatic.train.epochs, spec.train.epochs == "auto"
    settings: Settings = {}
    for field, value in _cheaper(spec):
        enough = FEWEST_EPOCHS if is_open and field != "backbone.image_size" else epochs
        if _fitting(epochs, bounds, longest) >= enough:
            break
        if field == "backbone.image_size" and value >= chosen.backbone.image_size:
            continue
        changed = _try(spec, settings | {field: value}, resolve)
        cheaper = estimated(changed[1]) if changed is not None else None
        if changed is not None and cheaper is not None and cheaper[1] < bounds[1]:
            settings[field], chosen, bounds = value, changed[1], cheaper
    if is_open and (fitting := max(1, _fitting(epochs, bounds, longest))) < epochs:
        changed = _try(spec, settings | {"train.epochs": fitting}, resolve)
        if changed is not None and (fewer := estimated(changed[1])) is not None:
            settings["train.epochs"], chosen, bounds = fitting, changed[1], fewer
    if settings and (is_open or bounds[1] <= longest):
        reason = (
            f"{_describe(automatic)} takes {describe_times(before)} here, and learns more. "
            f"A first look, {_describe(chosen)}, takes {describe_times(bounds)}."
        )
        yield Advice("train.epochs" if is_open else next(iter(settings)), reason, settings)


def _cheaper(spec: JobSpec) -> Iterator[tuple[str, Any]]:
    """Yield cheaper settings of the network, with random weights, where the spec leaves them open."""
    if spec.backbone.may_have_weights:
        return
    if spec.backbone.image_size == "auto":
        yield from (("backbone.image_size", size) for size in _SMALLER_SIZES)
    if "name" not in spec.backbone.model_fields_set:
        yield "backbone.name", _SMALL_NETWORK


def _fitting(epochs: int, bounds: Bounds, longest: float) -> int:
    """Return how many epochs end within `longest` seconds if `epochs` take `bounds`."""
    if bounds[1] <= longest:
        return epochs
    return int(epochs * (longest - MOST_AROUND) / (bounds[1] - MOST_AROUND))


def _try(
    spec: JobSpec, settings: Settings, resolve: Resolve
) -> tuple[JobSpec, ResolvedJobSpec] | None:
    """Return the spec with other settings, and the same resolved; None if other settings do not allow them."""
    content = spec.model_dump(mode="json", exclude_unset=True)
    try:
        changed = JobSpec.model_validate(apply(content, settings))
        return changed, resolve(changed)
    except (SpecError, ValidationError):
        return None


def _describe(resolved: ResolvedJobSpec) -> str:
    backbone = resolved.backbone
    stem = " and the stem for small images" if backbone.stem == "small" else ""
    epochs = counted(resolved.train.epochs, "epoch")
    return f"{backbone.name} with {backbone.image_size} px{stem} for {epochs}"
