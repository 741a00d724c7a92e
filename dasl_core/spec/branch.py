"""Going on from the checkpoint of another run with settings that have changed since."""

from typing import Any

from dasl_core.spec.errors import FieldProblem
from dasl_core.spec.resolved import ResolvedJobSpec

# What decides the shapes of weights, and what a step is: these cannot change on the way.
FIXED = {
    "method": (
        "projection_dim",
        "hidden_dim",
        "embedding_dim",
        "bottleneck_dim",
        "head_batch_norm",
        "out_dim",
        "prototypes",
        "queue_length",
    ),
    "backbone": ("name", "image_size", "in_channels", "stem"),
    "train": ("batch_size",),
    "evaluate": ("dataset", "holdout"),
}


def branch_problems(source: ResolvedJobSpec, spec: ResolvedJobSpec) -> list[FieldProblem]:
    """What keeps a run of `spec` from going on with the training state of `source`.

    Both are for the same data set. Learning rates, weights of the regularizers, views,
    temperatures, the number of epochs and of workers may differ; the optimizer may, too, and then
    begins anew.
    """
    if source.method.name != spec.method.name:
        # Another method has other fields: naming each would hide the cause.
        return [_changed("method.name", source.method.name, spec.method.name)]
    problems = []
    for part, names in FIXED.items():
        before, after = (getattr(each, part).model_dump(mode="json") for each in (source, spec))
        for name in names:
            if before.get(name) != after.get(name):
                problems.append(_changed(f"{part}.{name}", before.get(name), after.get(name)))
    return problems


def _changed(field: str, before: Any, after: Any) -> FieldProblem:
    return FieldProblem(
        field,
        "cannot change on the way: the weights of the checkpoint would not fit, or its steps be "
        "counted anew",
        str(after),
        str(before),
    )
