"""Variants of a base spec, and the specs of their jobs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic import ValidationError

from dasl_core.spec import FieldProblem, JobSpec, field_problems
from dasl_core.text import cut
from service.jobs.clones import merge

LONGEST_NAME = 100


@dataclass(frozen=True)
class Variant:
    """A named set of changes to the base spec."""

    name: str
    changes: dict[str, Any]


def grid_variants(grid: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """Build a variant for each combination of values, with a name such as `dar.weight=0.1, train.epochs=50`.

    Args:
        grid: values by the dotted path of their field.
    """
    variants = []
    for values in product(*grid.values()):
        changes: dict[str, Any] = {}
        for path, value in zip(grid, values, strict=True):
            changes = merge(changes, _nested(path, value))
        named = zip(grid, map(_text, values), strict=True)
        variants.append(Variant(", ".join(f"{path}={text}" for path, text in named), changes))
    return variants


def variant_specs(
    base: Mapping[str, Any], variants: Iterable[Variant], seeds: Sequence[int], name: str
) -> tuple[dict[str, JobSpec], list[FieldProblem]]:
    """Build the spec of each variant with its first seed, by name, and collect the problems of all variants.

    Args:
        name: name of the experiment, which is the prefix of its jobs' names.
    """
    specs, problems = {}, dict[str, list[FieldProblem]]()
    for variant in variants:
        changed = merge(dict(base), variant.changes)
        train = changed.get("train")
        if isinstance(train, dict) and "seed" in train:
            message = "is set by the seeds of the experiment; remove it"
            problems[variant.name] = [FieldProblem("train.seed", message)]
            continue
        document = changed | {"name": job_name(name, variant.name, seeds[0])}
        if train is None or isinstance(train, dict):
            document = merge(document, {"train": {"seed": seeds[0]}})
        try:
            specs[variant.name] = JobSpec.model_validate(document)
        except ValidationError as error:
            problems[variant.name] = field_problems(error, JobSpec)
    return specs, located(problems, [variant.name for variant in variants])


def job_name(experiment: str, variant: str, seed: int) -> str:
    """Return the name of a job: `is-dar-worth-it, dar, seed 0`."""
    return cut(f"{experiment}, {variant}", 200 - 30) + f", seed {seed}"


def located(
    problems: Mapping[str, Sequence[FieldProblem]], variants: Sequence[str]
) -> list[FieldProblem]:
    """Return problems with the paths of their fields in the request.

    A problem of all variants belongs to the base spec.
    """
    in_all = [
        problem
        for problem in problems.get(variants[0], ())
        if len(variants) > 1 and all(problem in problems.get(name, ()) for name in variants)
    ]
    in_base = [replace(problem, field=f"spec.{problem.field}") for problem in in_all]
    return in_base + [
        replace(problem, field=f"variants.{name}.{problem.field}")
        for name, each in problems.items()
        for problem in each
        if problem not in in_all
    ]


def _nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _text(value: Any) -> str:
    """Format a value for a name, which has no slashes."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("/", "-").replace("\\", "-")
