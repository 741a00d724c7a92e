"""Submit experiments: check all variants, then queue all jobs, or none. Nothing here commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from dasl_core.spec import FieldProblem, JobSpec
from service import ids
from service.api.auth import Caller
from service.api.problems import Problem, spec_problem
from service.db.models import Experiment
from service.db.rows import add, one, owned
from service.experiments.schemas import ExperimentRequest, ValidatedExperiment, VariantPlan
from service.experiments.service import view_of
from service.experiments.variants import located, specs_of, with_seed
from service.jobs import idempotency, submission, tenant_limits
from service.jobs.path_checks import PathChecks
from service.settings import ClusterLimit
from service.tokens.service import check_queue
from service.wire.experiments import ExperimentEstimate, SubmittedExperiment, TotalSeconds


@dataclass(frozen=True)
class CheckedVariants:
    """The specs of a request by variant, with the first seed, and what their paths were found to be."""

    request: ExperimentRequest
    specs: Mapping[str, JobSpec]
    checks: Mapping[str, PathChecks]


def specs_of_request(request: ExperimentRequest) -> dict[str, JobSpec]:
    """Return the spec of each variant, with the first seed.

    Raises:
        Problem: 422, naming each field at fault with its variant.
    """
    specs, problems = specs_of(request.spec, request.all_variants(), request.seeds, request.name)
    if problems:
        raise spec_problem(problems)
    return specs


def validate(
    session: Session, caller: Caller, checked: CheckedVariants, cluster_limit: ClusterLimit
) -> ValidatedExperiment:
    """Resolve all variants and estimate their cost, without storing anything.

    Raises:
        Problem: as `submit` does of specs and data sets.
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
                "name": each.name,
                "changes": each.changes,
                "held_out_images": plans[each.name].held_out_images,
            }
            for each in variants
        ],
        seeds=seeds,
        baseline=request.baseline or variants[0].name,
        metric=request.metric,
        token_id=caller.token_id,
        created_at=datetime.now(UTC),
    )
    add(session, experiment)
    # Seed by seed, so that all variants have been trained with the first one before the next begins.
    for seed in seeds:
        for each in variants:
            spec = with_seed(checked.specs[each.name], request.name, each.name, seed)
            planned = plans[each.name].with_seed(seed, spec.name)
            place = submission.Place(experiment.id, each.name, seed)
            submission.enqueue(session, caller, spec, planned, place=place)
    shown = SubmittedExperiment(**dict(view_of(session, experiment)))
    shown.estimate = _estimate(list(plans.values()), len(seeds))
    shown.warnings = _warnings(plans)
    return keyed.store(session, shown.model_dump(mode="json"), experiment.created_at)


def _estimate(plans: Sequence[submission.Plan], seeds: int) -> ExperimentEstimate:
    """Sum up what all variants take, each with so many seeds."""
    times = [planned.estimate.seconds for planned in plans]
    known = [each for each in times if each is not None]
    total = TotalSeconds(
        low=round(seeds * sum(each.low for each in known), 1),
        high=round(seeds * sum(each.high for each in known), 1),
    )
    return ExperimentEstimate(
        jobs=seeds * len(plans),
        seconds=total if len(known) == len(times) else None,
        checkpoints_bytes=seeds * sum(each.estimate.checkpoints_bytes for each in plans),
    )


def _warnings(plans: Mapping[str, submission.Plan]) -> list[str]:
    warnings = [warning for planned in plans.values() for warning in planned.warnings]
    return list(dict.fromkeys(warnings + list(_equal_variants(plans))))


def _equal_variants(plans: Mapping[str, submission.Plan]) -> Iterator[str]:
    """Name the variants whose jobs would do the same, such as those of the values 1 and 1.0."""
    first = dict[str, str]()
    for name, planned in plans.items():
        settings = planned.resolved.model_copy(update={"name": None}).model_dump_json()
        if (other := first.setdefault(settings, name)) != name:
            yield f"variants.{name}: has the settings of {other}, so its jobs repeat those of {other}"


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
            plans[name] = submission.plan(
                session,
                caller.tenant,
                spec,
                checked.checks[name],
                cluster_limit,
                token_id=caller.token_id,
                lock=lock,
            )
        except Problem as problem:
            if problem.status_code != 422:  # a data set is being ingested
                raise
            problems[name] = problem.errors
    if problems:
        raise spec_problem(located(problems, list(checked.specs)))
    return plans
