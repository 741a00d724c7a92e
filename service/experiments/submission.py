"""Submit experiments: check all variants, then queue all jobs or none. The caller commits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from dasl_core.spec import DatasetFacts, FieldProblem, JobSpec
from service import ids
from service.api.auth import Caller
from service.api.problems import Problem, spec_problem
from service.db.models import Experiment
from service.db.rows import add, one, owned
from service.experiments.effects import find_design
from service.experiments.notes import design_notes, setting_notes
from service.experiments.schemas import ExperimentRequest, ValidatedExperiment, VariantPlan
from service.experiments.service import experiment_view
from service.experiments.variants import job_name, located, variant_specs
from service.jobs import idempotency, submission, tenant_limits
from service.jobs.path_checks import CheckedSpec
from service.settings import ClusterLimit
from service.tokens.service import check_queue
from service.wire.experiments import ExperimentEstimate, SubmittedExperiment, TotalSeconds
from service.wire.jobs import ExperimentPlace


@dataclass(frozen=True)
class CheckedVariants:
    """The checked specs of a request by variant, with the first seed."""

    request: ExperimentRequest
    specs: Mapping[str, CheckedSpec]


def build_specs(request: ExperimentRequest) -> dict[str, JobSpec]:
    """Build the spec of each variant, with the first seed.

    Raises:
        Problem: 422, naming each field at fault with its variant.
    """
    specs, problems = variant_specs(
        request.spec, request.all_variants(), request.seeds, request.name
    )
    if problems:
        raise spec_problem(problems)
    return specs


def validate(
    session: Session, caller: Caller, checked: CheckedVariants, cluster_limit: ClusterLimit
) -> ValidatedExperiment:
    """Resolve all variants and estimate their cost, without storing anything.

    Raises:
        Problem: the problems of specs and data sets of `submit`.
    """
    plans = _plans(session, caller, checked, cluster_limit)
    variants = [
        VariantPlan(
            name=name,
            resolved=planned.resolved.model_dump(mode="json"),
            estimate=planned.estimate,
        )
        for name, planned in plans.items()
    ]
    return ValidatedExperiment(
        variants=variants,
        estimate=_estimate(list(plans.values()), len(checked.request.seeds)),
        warnings=_warnings(plans),
        notes=_notes(checked.request, plans),
    )


def submit(
    session: Session,
    caller: Caller,
    checked: CheckedVariants,
    key: str | None,
    cluster_limit: ClusterLimit,
) -> tuple[dict[str, Any], bool]:
    """Queue the jobs of an experiment.

    Args:
        key: the Idempotency-Key. The same key with the same request replays the first answer.
        cluster_limit: as in `service.jobs.submission.plan`.

    Returns:
        The first answer to the request, as it was stored, and whether this is a replay.

    Raises:
        Problem: as in `service.jobs.submission.submit`, with the variant in the names of fields.
    """
    request = checked.request
    keyed = idempotency.Request(
        caller.tenant,
        key,
        {"experiment": request.model_dump(mode="json", exclude_unset=True)},
        "experiment",
        lambda experiment_id: (
            one(session, owned(Experiment, caller.tenant), experiment_id) is not None
        ),
    )
    queue_limit = submission.lock_queue(session, caller)
    if (replay := keyed.replay(session)) is not None:
        return replay, True
    plans = _plans(session, caller, checked, cluster_limit, lock=True)
    variants, seeds = request.all_variants(), request.seeds
    count = len(variants) * len(seeds)
    check_queue(session, caller, queue_limit, count)
    tenant_limits.check_queue(session, caller.tenant, count)
    experiment = Experiment(
        id=ids.new_id("exp"),
        tenant=caller.tenant,
        name=request.name,
        spec=request.spec,
        variants=[
            {
                "name": variant.name,
                "changes": variant.changes,
                "held_out_images": plans[variant.name].held_out_images,
            }
            for variant in variants
        ],
        seeds=seeds,
        baseline=request.baseline or variants[0].name,
        metric=request.metric,
        token_id=caller.token_id,
        created_at=datetime.now(UTC),
    )
    add(session, experiment)
    # Queue seed by seed, so that all variants are trained with the first seed before the next one begins.
    for seed in seeds:
        for variant in variants:
            planned = plans[variant.name].with_seed(
                seed, job_name(request.name, variant.name, seed)
            )
            place = ExperimentPlace(id=experiment.id, variant=variant.name, seed=seed)
            submission.enqueue(session, caller, planned, experiment=place)
    shown = SubmittedExperiment(**dict(experiment_view(session, experiment)))
    shown.estimate = _estimate(list(plans.values()), len(seeds))
    shown.warnings = _warnings(plans)
    shown.notes = _notes(request, plans)
    return keyed.store(session, shown.model_dump(mode="json"), experiment.created_at)


def _estimate(plans: Sequence[submission.Plan], seeds: int) -> ExperimentEstimate:
    """Sum up the estimates of all variants with this number of seeds."""
    times = [planned.estimate.seconds for planned in plans]
    known_times = [time for time in times if time is not None]
    total = TotalSeconds(
        low=round(seeds * sum(time.low for time in known_times), 1),
        high=round(seeds * sum(time.high for time in known_times), 1),
    )
    return ExperimentEstimate(
        jobs=seeds * len(plans),
        seconds=total if len(known_times) == len(times) else None,
        checkpoints_bytes=seeds * sum(plan.estimate.checkpoints_bytes for plan in plans),
    )


def _warnings(plans: Mapping[str, submission.Plan]) -> list[str]:
    warnings = [warning for planned in plans.values() for warning in planned.warnings]
    return list(dict.fromkeys(warnings + list(_equal_variants(plans))))


def _notes(request: ExperimentRequest, plans: Mapping[str, submission.Plan]) -> list[str]:
    """Return the limits of the results that are known before anything is trained."""
    changes = {variant.name: variant.changes for variant in request.all_variants()}
    resolved = {name: planned.resolved.model_dump(mode="json") for name, planned in plans.items()}
    baseline = request.baseline or next(iter(changes))
    held_out = {planned.held_out_images for planned in plans.values()}
    notes = [
        *setting_notes(changes, baseline, resolved),
        *design_notes(len(request.seeds), held_out, find_design(request.spec, changes, baseline)),
    ]
    versions = [plan.evaluate_version or plan.version for plan in plans.values()]
    if len({str(each["augment"]) for each in resolved.values()}) > 1 and not any(
        DatasetFacts.model_validate(version.facts).num_classes for version in versions
    ):
        notes.append(
            "The images have no labels, and what is measured on views cannot be compared between other views (augment): "
            "there will be no verdict. Add labels."
        )
    return notes


def _equal_variants(plans: Mapping[str, submission.Plan]) -> Iterator[str]:
    """Yield warnings of variants with equal settings, such as the values 1 and 1.0."""
    first = dict[str, str]()
    for name, planned in plans.items():
        settings = planned.resolved.model_copy(update={"name": None}).model_dump_json()
        if (other := first.setdefault(settings, name)) != name:
            yield f"variants.{name}: has the same settings as {other}; its jobs only repeat them"


def _plans(
    session: Session,
    caller: Caller,
    checked: CheckedVariants,
    cluster_limit: ClusterLimit,
    *,
    lock: bool = False,
) -> dict[str, submission.Plan]:
    plans, problems = {}, dict[str, list[FieldProblem]]()
    for name, spec in checked.specs.items():
        try:
            plans[name] = submission.plan(session, caller, spec, cluster_limit, lock=lock)
        except Problem as problem:
            if problem.status_code != 422:  # a data set is being ingested
                raise
            problems[name] = problem.errors
    if problems:
        raise spec_problem(located(problems, list(checked.specs)))
    return plans
