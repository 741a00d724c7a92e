"""Notes on the limits of an experiment's results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from dasl_core.headlines import is_share_of_images, number_of
from dasl_core.spec.differences import differing
from service.db.models import Experiment, Job
from service.experiments.repository import Measured
from service.experiments.statistics import LEVEL
from service.states import TERMINAL, JobStatus
from service.wire.experiments import MetricResult

OF_VIEWS = "instance_recall_at_"
"""Prefix of metrics that compare augmented views with images."""
_MOST_NAMES = 5
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
        notes.append(
            f"{succeeded} of {planned} jobs have succeeded ({running} still to end); only those that have succeeded count."
        )
    variants_by_job = {job.id: str(job.variant) for job in jobs}
    for table in tables:
        notes += _reference_notes(table, before_training, variants_by_job)
    notes += _setting_notes(experiment, jobs)
    notes += _view_notes(experiment, jobs, tables)
    notes.append(_image_note(experiment, jobs, tables))
    comparisons = len(experiment.variants) - 1
    if comparisons > 1:
        risk = min(1.0, comparisons * (1 - LEVEL))
        notes.append(
            f"{comparisons} variants are compared with {experiment.baseline}: if none differed, at least one would still be "
            f"called better or worse in up to {risk:.0%} of such experiments."
        )
    return notes


def with_other_augmentations(experiment: Experiment, jobs: Sequence[Job]) -> list[str]:
    """Return the variants whose augmentations differ from the baseline's."""
    return [
        variant
        for variant, settings in _differing(experiment, jobs).items()
        if any(name.partition(".")[0] == "augment" for name in settings)
    ]


def _reference_notes(
    table: MetricResult, before: Sequence[Measured], variants_by_job: Mapping[str, str]
) -> Iterator[str]:
    """Yield whether the variants are better than before training, each compared with its own jobs."""
    metric, means = table.metric, _means(table.metric, before, variants_by_job)
    results = [result for result in table.variants if result.summary and means.get(result.variant)]
    if table.larger_is_better is None or not results:
        return
    worse = []
    for result in results:
        assert result.summary is not None
        sign = 1 if table.larger_is_better else -1
        if any(
            sign * result.summary.mean <= sign * mean for mean in means[result.variant].values()
        ):
            worse.append(result.variant)
    by_variant = [means[result.variant] for result in results]
    subjects = [name for name in _SUBJECTS if any(name in mean for mean in by_variant)]
    spans = [
        _span([mean[name] for mean in by_variant if name in mean], metric) for name in subjects
    ]
    first = (
        f"{spans[0]} points of {metric}" if is_share_of_images(metric) else f"{metric} {spans[0]}"
    )
    sentence = f"{_SUBJECTS[subjects[0]]} {first}"
    for subject, span in zip(subjects[1:], spans[1:], strict=True):
        sentence += f", {_SUBJECTS[subject].rpartition(' ')[0]} {span}"
    than = {1: "", 2: " than both"}.get(len(subjects), " than all of these")
    if len(worse) == len(results):
        finding = f"no variant is better{than}"
    elif worse:
        finding = f"not better{than}: {_listed(worse)}"
    else:
        finding = f"all variants are better{than}"
    yield f"{sentence[0].upper()}{sentence[1:]}: {finding}."


def _means(
    metric: str, before: Sequence[Measured], variants_by_job: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Return the mean of a metric over the jobs of each variant, by subject."""
    last: dict[tuple[str, str], float] = {}
    for each in before:
        value = number_of(each.metrics, metric)
        if value is not None and math.isfinite(value):
            last[each.job_id, each.subject] = value
    values: dict[str, dict[str, list[float]]] = {}
    for (job_id, subject), value in last.items():
        if (variant := variants_by_job.get(job_id)) is not None:
            values.setdefault(variant, {}).setdefault(subject, []).append(value)
    return {
        variant: {subject: fmean(each) for subject, each in of_variant.items()}
        for variant, of_variant in values.items()
    }


def _span(values: Sequence[float], metric: str) -> str:
    low, high = (
        f"{100 * value:.1f}" if is_share_of_images(metric) else f"{value:.3g}"
        for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def _setting_notes(experiment: Experiment, jobs: Sequence[Job]) -> Iterator[str]:
    """Yield which settings differ from the baseline's although no variant sets them: they depend on the changes."""
    changes = {variant["name"]: _paths(variant["changes"]) for variant in experiment.variants}
    variants_by_names: dict[tuple[str, ...], list[str]] = {}
    for variant, settings in _differing(experiment, jobs).items():
        changed = changes[variant] + changes[experiment.baseline]
        names = tuple(name for name, values in settings.items() if _follows(name, values, changed))
        if names:
            variants_by_names.setdefault(names, []).append(variant)
    for names, variants in variants_by_names.items():
        yield (
            f"{_listed(variants)}: settings that are not among the changes differ from {experiment.baseline}, too: "
            f"{_listed(names)}. To compare the changes alone, set them in `spec`."
        )


def _differing(experiment: Experiment, jobs: Sequence[Job]) -> dict[str, dict[str, list[object]]]:
    """Return the resolved settings, except the seed, in which each variant differs from the baseline."""
    resolved: dict[str, Mapping[str, Any]] = {}
    for job in jobs:
        resolved.setdefault(str(job.variant), job.resolved)
    baseline = resolved.get(experiment.baseline)
    if baseline is None:
        return {}
    differences = {}
    for variant in experiment.variants:
        if (settings := resolved.get(variant["name"])) is not None:
            differences[variant["name"]] = differing([settings, baseline])
            differences[variant["name"]].pop("train.seed", None)
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
    same = "All jobs are evaluated on the same images, so the intervals cover the seeds only."
    step = next((table for table in tables if table.resolution is not None), None)
    if step is None or step.resolution is None:
        return same
    about = "About " if any(_holds_out_classes(job.resolved) for job in jobs) else ""
    return (
        f"{about}{round(1 / step.resolution):,} held-out images: one image is {100 * step.resolution:.2g} "
        f"points of {step.metric}. {same}"
    )


def _holds_out_classes(resolved: Mapping[str, Any]) -> bool:
    """Whether whole classes are held out, so that the number of held-out images is only expected."""
    evaluate = resolved.get("evaluate") or {}
    holdout = evaluate.get("holdout") or {}
    return evaluate.get("dataset") is None and holdout.get("by") == "class"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {rest} more" if rest > 0 else shown
