"""Results of an experiment: metrics of its variants over seeds, differences from the baseline, and verdicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy.orm import Session

from dasl_core.headlines import (
    HEADLINES,
    better_direction,
    denominator,
    is_share_of_images,
    number_of,
)
from service.db.models import Experiment, Job
from service.experiments import repository
from service.experiments.effects import effects, find_design
from service.experiments.notes import (
    OF_VIEWS,
    build_notes,
    has_collapsed,
    with_other_augmentations,
)
from service.experiments.repository import Measured
from service.experiments.statistics import (
    FEWEST_PAIRS,
    LEVEL,
    POWER,
    is_within,
    judge,
    paired_difference,
    summarize,
)
from service.wire.experiments import MetricResult, Results, VariantResult

EFFECTS_NOTE = (
    "Of each change, half of the variants are compared with the other half. The intervals contain what single changes "
    "leave unexplained: the seed, and changes that only work together."
)
Values = dict[str, dict[int, float]]
"""Values of a metric by variant and seed."""


def compute_results(
    session: Session,
    experiment: Experiment,
    jobs: Sequence[Job],
    metrics: Sequence[str] | None = None,
    *,
    only_deciding: bool = False,
) -> Results:
    """Compute the results of the jobs that have succeeded.

    Args:
        metrics: names of the metrics to compare, with sentences on all of them; by default all measured metrics with a
            better direction, with sentences on the one that decides.
        only_deciding: compare only the metric that decides, because each bootstrap takes some milliseconds.
    """
    # The embedding of a supervised method, which counts, is recorded after its backbone.
    measured = {each.job_id: each for each in repository.final_evaluations(session, experiment.id)}
    names = _measured_names(measured.values())
    deciding = experiment.metric or next((name for name in names if name in HEADLINES), None)
    first = [] if deciding is None else [deciding]
    judged = first if only_deciding or metrics is None else list(dict.fromkeys(metrics))
    listed = judged if only_deciding or metrics is not None else list(dict.fromkeys(first + names))
    tables = {name: _table(experiment, jobs, measured, name) for name in listed}
    sentences = [
        _sentence(result, experiment, tables[name])
        for name in judged
        for result in tables[name].variants
        if result.verdict is not None
    ]
    before = repository.evaluations_before_training(session, experiment.id)
    notes = build_notes(experiment, jobs, before, [tables[name] for name in judged])
    if of_changes := [
        each for name in judged for each in _effect_sentences(experiment, tables[name])
    ]:
        sentences = of_changes
        notes.append(EFFECTS_NOTE)
    if deciding is not None and listed != first:
        notes.append(
            f"{deciding} decides. Verdicts on other metrics are hints: of ten metrics, one may differ by chance."
        )
    return Results(
        experiment=experiment.id,
        baseline=experiment.baseline,
        metric=deciding,
        sentences=sentences,
        notes=notes,
        metrics=[*tables.values()],
    )


def _measured_names(evaluations: Iterable[Measured]) -> list[str]:
    """Return the metrics with a better direction, headlines first."""
    names = {
        name for each in evaluations for name in each.metrics if better_direction(name) is not None
    }
    return [name for name in HEADLINES if name in names] + sorted(names - {*HEADLINES})


def _table(
    experiment: Experiment, jobs: Sequence[Job], measured: Mapping[str, Measured], metric: str
) -> MetricResult:
    values: Values = {variant["name"]: {} for variant in experiment.variants}
    for job in jobs:
        value = number_of(measured[job.id].metrics, metric) if job.id in measured else None
        # The variance of larger ones overflows.
        if value is not None and abs(value) < 1e100 and job.variant in values:
            assert job.seed is not None
            values[job.variant][job.seed] = value
    resolution = _resolution(experiment, metric)
    # With other augmentations, views are harder or easier to retrieve, independent of the network.
    unlike = with_other_augmentations(experiment, jobs) if metric.startswith(OF_VIEWS) else []
    collapsed = {str(job.variant) for job in jobs if has_collapsed(job)}
    larger_is_better = better_direction(metric)
    variants = []
    for name, by_seed in values.items():
        difference, verdict = None, None
        if name != experiment.baseline:
            difference = paired_difference(by_seed, values[experiment.baseline], resolution)
            if larger_is_better is not None and name not in unlike:
                verdict = judge(
                    difference,
                    larger_is_better=larger_is_better,
                    resolution=resolution,
                    has_collapsed=name in collapsed,
                )
        result = VariantResult(
            variant=name,
            values=dict(sorted(by_seed.items())),
            summary=summarize([*by_seed.values()]),
            difference=difference,
            verdict=verdict,
        )
        variants.append(result)
    return MetricResult(
        metric=metric,
        larger_is_better=larger_is_better,
        resolution=resolution,
        variants=variants,
    )


def _resolution(experiment: Experiment, metric: str) -> float | None:
    """Return the share of one held-out image, if all variants are evaluated on the same number."""
    held_out = {variant["held_out_images"] for variant in experiment.variants}
    images = held_out.pop() if len(held_out) == 1 else None
    return 1 / denominator(metric, images) if images and is_share_of_images(metric) else None


def _sentence(result: VariantResult, experiment: Experiment, table: MetricResult) -> str:
    """Return the verdict on a variant and the baseline as a sentence."""
    variant, baseline, metric = result.variant, experiment.baseline, table.metric
    difference, verdict = result.difference, result.verdict
    assert verdict is not None
    pairs = 0 if difference is None else difference.n
    if verdict == "too_few_seeds" or difference is None or difference.t_interval is None:
        seeds = "1 seed has" if pairs == 1 else f"{pairs} seeds have"
        return (
            f"{variant}: too few seeds to say whether it differs from {baseline} in {metric}: {seeds} ended in both, and "
            f"{FEWEST_PAIRS} are needed."
        )
    low, high = (_signed(bound, metric) for bound in difference.t_interval)
    unit = " points" if is_share_of_images(metric) else ""
    evidence = f"{_signed(difference.mean, metric)}{unit}, {LEVEL:.0%} interval {low} to {high}"
    if verdict == "no_difference":
        sentence = f"{variant}: no difference from {baseline} in {metric} beyond the spread of {pairs} seeds ({evidence})."
        if is_within(difference.mean, table.resolution):
            sentence += " The difference is at most one of the held-out images."
        elif difference.detectable is not None:
            found = _signed(difference.detectable, metric).lstrip("+")
            sentence += (
                f" A true difference of {found}{unit} is found by {POWER:.0%} of such experiments."
            )
        return sentence
    if verdict == "unstable":
        return (
            f"{variant}: unstable, since a seed collapsed or diverged; the seeds with a result are better than {baseline} "
            f"in {metric} ({evidence}, {pairs} seeds)."
        )
    return f"{variant}: {verdict} than {baseline} in {metric} ({evidence}, {pairs} seeds)."


def _effect_sentences(experiment: Experiment, table: MetricResult) -> Iterator[str]:
    """Yield the effect of each change, where seeds are too few and the variants are a complete design."""
    changes = {variant["name"]: variant["changes"] for variant in experiment.variants}
    design = find_design(experiment.spec, changes, experiment.baseline)
    seeds = len(experiment.seeds)
    means = [
        each.summary.mean for each in table.variants if each.summary and each.summary.n == seeds
    ]
    few = [each for each in table.variants if each.verdict == "too_few_seeds"]
    if not design or not len(means) == len(table.variants) == len(few) + 1:
        return
    for change, effect, half in effects(design, means, table.resolution):
        finding = "better" if (effect > 0) == table.larger_is_better else "worse"
        if abs(effect) <= half or is_within(effect, table.resolution):
            finding = "no difference"
        unit = " points" if is_share_of_images(table.metric) else ""
        low, mean, high = (_signed(effect + side * half, table.metric) for side in (-1, 0, 1))
        yield f"{change}: {finding} in {table.metric} ({mean}{unit}, {LEVEL:.0%} interval {low} to {high})."


def _signed(difference: float, metric: str) -> str:
    """Format a difference with its sign; differences of shares in percentage points."""
    return f"{100 * difference:+.2f}" if is_share_of_images(metric) else f"{difference:+.3g}"
