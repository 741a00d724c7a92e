"""Notes on the limits of an experiment's results."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from dasl_core.headlines import is_share_of_images, number_of
from dasl_core.spec.differences import differing
from dasl_core.verdict import MANY_IMAGES
from service.db.models import Experiment, Job
from service.experiments.repository import Measured
from service.experiments.statistics import (
    FEWEST_PAIRS,
    LEVEL,
    POWER,
    detectable_difference,
    judge,
    paired_difference,
)
from service.states import TERMINAL, JobStatus
from service.wire.experiments import MetricResult

OF_VIEWS = "instance_recall_at_"
"""Prefix of metrics that compare augmented views with images."""
_MOST_NAMES = 5
_BROKEN = ("CollapsedError", "DivergedError")
"""Error types of trainings whose network broke."""
_SUBJECTS = {
    "raw": "raw pixels have",
    "untrained": "the untrained network has",
    "start": "the weights to start from have",
}


def build_notes(
    experiment: Experiment,
    jobs: Sequence[Job],
    before_training: Sequence[Measured],
    tables: Sequence[MetricResult],
) -> list[str]:
    """Return the notes on the results.

    Args:
        before_training: evaluations of raw pixels and of the network before training, newer ones last.
        tables: results of the metrics with sentences.
    """
    notes = []
    planned = len(experiment.variants) * len(experiment.seeds)
    succeeded = sum(job.status == JobStatus.SUCCEEDED for job in jobs)
    running = sum(job.status not in TERMINAL for job in jobs)
    if succeeded < planned:
        # A collapse counts against a variant only while its job is there.
        deleted = f", {planned - len(jobs)} deleted" if len(jobs) < planned else ""
        notes.append(
            f"{succeeded} of {planned} jobs have succeeded ({running} still to end{deleted}); only those that have succeeded "
            "count."
        )
    jobs_by_id = {job.id: job for job in jobs}
    for table in tables:
        notes += _reference_notes(table, before_training, jobs_by_id)
    collapsed = [
        f"{job.variant} with seed {job.seed}"
        + ("" if job.status == JobStatus.SUCCEEDED else " (no result)")
        for job in jobs
        if has_collapsed(job)
    ]
    if collapsed:
        notes.append(
            f"Collapsed or diverged: {_listed(collapsed)}. A variant with such a seed is not called better, and what is "
            "better than such a baseline need not be good."
        )
    changes = {variant["name"]: variant["changes"] for variant in experiment.variants}
    notes += setting_notes(changes, experiment.baseline, _resolved(jobs))
    notes += _view_notes(experiment, jobs, tables)
    notes.append(_image_note(experiment, jobs, tables))
    comparisons = len(experiment.variants) - 1
    if comparisons > 1 and len(experiment.seeds) >= FEWEST_PAIRS:
        risk = min(1.0, comparisons * (1 - LEVEL))
        notes.append(
            f"{comparisons} variants are compared with {experiment.baseline}: if none differed, at least one would still be "
            f"called better or worse in up to {risk:.0%} of such experiments."
        )
    return notes


def has_collapsed(job: Job) -> bool:
    """Whether a job has collapsed, with or without an end by `train.collapse`, or has diverged."""
    verdict, error = job.verdict or {}, job.error or {}
    return verdict.get("verdict") == "collapsed" or error.get("type") in _BROKEN


def with_other_augmentations(experiment: Experiment, jobs: Sequence[Job]) -> list[str]:
    """Return the variants whose augmentations differ from the baseline's."""
    return [
        variant
        for variant, settings in _differing(experiment.baseline, _resolved(jobs)).items()
        if any(name.partition(".")[0] == "augment" for name in settings)
    ]


def _reference_notes(
    table: MetricResult, before: Sequence[Measured], jobs: Mapping[str, Job]
) -> Iterator[str]:
    """Yield whether the variants are better than before training, each compared with its own jobs, by seed."""
    references = _references(table.metric, before, jobs)
    results = [each for each in table.variants if each.summary and references.get(each.variant)]
    if table.larger_is_better is None or not results:
        return
    unclear = []
    for result in results:
        for values in references[result.variant].values():
            difference = paired_difference(result.values, values, table.resolution)
            verdict = judge(
                difference,
                larger_is_better=table.larger_is_better,
                resolution=table.resolution,
            )
            if verdict != "better" and result.variant not in unclear:
                unclear.append(result.variant)
    of_results = [references[result.variant] for result in results]
    subjects = [name for name in _SUBJECTS if any(name in values for values in of_results)]
    spans = [
        _span(
            [fmean(values[name].values()) for values in of_results if name in values], table.metric
        )
        for name in subjects
    ]
    metric = table.metric
    first = (
        f"{spans[0]} points of {metric}" if is_share_of_images(metric) else f"{metric} {spans[0]}"
    )
    sentence = f"{_SUBJECTS[subjects[0]]} {first}"
    for subject, span in zip(subjects[1:], spans[1:], strict=True):
        sentence += f", {_SUBJECTS[subject].rpartition(' ')[0]} {span}"
    than = {1: "", 2: " than both"}.get(len(subjects), " than all of these")
    if max(len(result.values) for result in results) < FEWEST_PAIRS:
        finding = f"too few seeds to say whether a variant is better{than}"
    elif len(unclear) == len(results):
        finding = f"no variant is clearly better{than}"
    elif unclear:
        finding = f"not clearly better{than}: {_listed(unclear)}"
    else:
        finding = f"all variants are better{than}"
    yield f"{sentence[0].upper()}{sentence[1:]}: {finding}."


def _references(
    metric: str, before: Sequence[Measured], jobs: Mapping[str, Job]
) -> dict[str, dict[str, dict[int, float]]]:
    """Return the values of a metric before training by variant, subject and seed, newer ones last."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    for each in before:
        value, job = number_of(each.metrics, metric), jobs.get(each.job_id)
        if value is not None and math.isfinite(value) and job is not None and job.seed is not None:
            of_subject = values.setdefault(str(job.variant), {}).setdefault(each.subject, {})
            of_subject[job.seed] = value
    return values


def _span(values: Sequence[float], metric: str) -> str:
    low, high = (
        f"{100 * value:.1f}" if is_share_of_images(metric) else f"{value:.3g}"
        for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def setting_notes(
    changes: Mapping[str, Mapping[str, Any]],
    baseline: str,
    resolved: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Yield which settings differ from the baseline's although no variant sets them: they depend on the changes.

    Args:
        changes: of each variant.
        resolved: the resolved spec of each variant that has one.
    """
    paths = {name: _paths(change) for name, change in changes.items()}
    variants_by_names: dict[tuple[str, ...], list[str]] = {}
    for variant, settings in _differing(baseline, resolved).items():
        changed = paths[variant] + paths[baseline]
        names = tuple(name for name, values in settings.items() if _follows(name, values, changed))
        if names:
            variants_by_names.setdefault(names, []).append(variant)
    for names, variants in variants_by_names.items():
        yield (
            f"{_listed(variants)}: settings that are not among the changes differ from {baseline}, too: "
            f"{_listed(names)}. To compare the changes alone, set them in `spec`."
        )


def design_notes(
    seeds: int, held_out: Collection[int | None], changes: Collection[str]
) -> Iterator[str]:
    """Yield what the number of seeds and of held-out images can show, before anything is trained.

    Args:
        changes: those of a design (`service.experiments.effects`).
    """
    if changes and seeds < FEWEST_PAIRS:
        yield f"Half of the variants have each of these changes, whose effects are compared: {'; '.join(changes)}."
    elif seeds < FEWEST_PAIRS:
        yield f"seeds: {seeds} is too few for a verdict. Use at least {FEWEST_PAIRS}, such as 5."
    else:
        found = detectable_difference(seeds)
        yield (
            f"With {seeds} seeds, {POWER:.0%} of experiments find a true difference of {found:.1f} times the standard "
            "deviation of the paired differences between seeds."
        )
    images = min((number for number in held_out if number), default=0)
    if images and images < MANY_IMAGES:
        yield (
            f"{images} held-out images: one of them is {100 / images:.2g} points of an accuracy, and smaller differences "
            "are not seen. Hold out more (evaluate.holdout.fraction)."
        )


def _resolved(jobs: Sequence[Job]) -> dict[str, Mapping[str, Any]]:
    """Return the resolved spec of the first job of each variant."""
    resolved: dict[str, Mapping[str, Any]] = {}
    for job in jobs:
        resolved.setdefault(str(job.variant), job.resolved)
    return resolved


def _differing(
    baseline: str, resolved: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, list[object]]]:
    """Return the resolved settings, except the seed, in which each variant differs from the baseline."""
    if baseline not in resolved:
        return {}
    differences = {}
    for variant, settings in resolved.items():
        differences[variant] = differing([settings, resolved[baseline]])
        differences[variant].pop("train.seed", None)
        differences[variant].pop("name", None)
    return differences


def _paths(changes: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted names of the settings of a variant, including null values."""
    paths = []
    for name, value in changes.items():
        if isinstance(value, dict) and value:
            paths += _paths(value, f"{prefix}{name}.")
        else:
            paths.append(f"{prefix}{name}")
    return paths


def _follows(name: str, values: Sequence[object], changed: Sequence[str]) -> bool:
    if any(name == path or name.startswith(f"{path}.") for path in changed):
        return False
    section = name.partition(".")[0]
    if f"{section}.name" in changed:  # another method has other settings
        return False
    # A setting that only one of them has belongs to the changed section.
    return None not in values or all(path.partition(".")[0] != section for path in changed)


def _view_notes(
    experiment: Experiment, jobs: Sequence[Job], tables: Sequence[MetricResult]
) -> Iterator[str]:
    metrics = [table.metric for table in tables if table.metric.startswith(OF_VIEWS)]
    variants = with_other_augmentations(experiment, jobs)
    if metrics and variants:
        yield (
            f"{_listed(variants)}: no verdict on {_listed(metrics)}, because the augmentations (`augment`) differ from "
            f"{experiment.baseline}."
        )


def _image_note(experiment: Experiment, jobs: Sequence[Job], tables: Sequence[MetricResult]) -> str:
    if len({variant["held_out_images"] for variant in experiment.variants}) > 1:
        return "The variants are evaluated on different numbers of images."
    same = "All jobs are evaluated on the same images"
    same += ", so the intervals cover the seeds only." if len(experiment.seeds) > 1 else "."
    step = next((table for table in tables if table.resolution is not None), None)
    if step is None or step.resolution is None:
        return same
    about = "About " if any(_is_expected(job.resolved) for job in jobs) else ""
    return (
        f"{about}{round(1 / step.resolution):,} held-out images: one image is {100 * step.resolution:.2g} "
        f"points of {step.metric}. {same}"
    )


def _is_expected(resolved: Mapping[str, Any]) -> bool:
    """Whether classes or groups are held out, so that the number of held-out images is only expected."""
    evaluate = resolved.get("evaluate") or {}
    holdout = evaluate.get("holdout") or {}
    return evaluate.get("dataset") is None and holdout.get("by") in ("class", "group")


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {rest} more" if rest > 0 else shown
