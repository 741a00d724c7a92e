"""Check that a job with changed settings can branch off another job's checkpoint."""

from typing import Any

from dasl_core.spec.base import shorten
from dasl_core.spec.methods import METHODS
from dasl_core.spec.methods.config import FixesShapes
from dasl_core.spec.problems import FieldProblem
from dasl_core.spec.resolved import ResolvedJobSpec

# Settings that define a step, in addition to those that determine the shape of a weight.
STEP_FIELDS = {
    "backbone": ("name", "image_size", "in_channels", "stem"),
    "train": ("batch_size",),
    "evaluate": ("dataset", "holdout"),
}


def shape_fields(method: str) -> tuple[str, ...]:
    """Return the names of a method's settings that determine the shape of a weight."""
    return tuple(
        name
        for name, field in METHODS[method].model_fields.items()
        if any(isinstance(mark, FixesShapes) for mark in field.metadata)
    )


def branch_problems(source: ResolvedJobSpec, spec: ResolvedJobSpec) -> list[FieldProblem]:
    """Return the problems that prevent a run of `spec` from resuming the training state of `source`.

    Both are for the same data set. Learning rates, weights of the regularizers, views,
    temperatures, the number of epochs and of workers may differ; the optimizer may, too, and then
    starts from scratch.
    """
    if source.method.name != spec.method.name:
        # Another method has other fields, and naming each would hide the cause.
        return [_changed("method.name", source.method.name, spec.method.name)]
    problems = []
    fixed = {"method": shape_fields(spec.method.name)} | STEP_FIELDS
    for part, names in fixed.items():
        before, after = (getattr(job, part).model_dump(mode="json") for job in (source, spec))
        for name in names:
            if before.get(name) != after.get(name):
                problems.append(_changed(f"{part}.{name}", before.get(name), after.get(name)))
    if source.backbone.window != spec.backbone.window:
        windows = (list(settings.backbone.window) for settings in (source, spec))
        problems.append(_changed("backbone.window", *windows))
    same_channels = source.backbone.in_channels == spec.backbone.in_channels
    if same_channels and not source.backbone.normalization.is_close(spec.backbone.normalization):
        for name in ("mean", "std"):
            old, new = getattr(source.backbone, name), getattr(spec.backbone, name)
            if old != new:
                problems.append(_changed(f"backbone.{name}", list(old), list(new)))
    return problems


def _changed(field: str, before: Any, after: Any) -> FieldProblem:
    return FieldProblem(
        field,
        "cannot change when resuming: the checkpoint's weights or its step count would not fit",
        shorten(after),
        shorten(before),
    )
