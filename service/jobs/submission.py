"""Submit jobs: find the data, resolve the spec, queue the job. The caller commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from dasl_core.spec import (
    DatasetFacts,
    FieldProblem,
    JobSpec,
    ResolvedJobSpec,
    SpecError,
    advise,
    evaluation_problem,
)
from dasl_core.spec import resolve as resolve_spec
from dasl_core.spec import versions as spec_versions
from dasl_core.spec.job import ANOTHER_DATASET, NOT_ITS_DATASET
from dasl_core.spec.resolve.evaluate import unmatched_classes
from service import ids, lifecycle
from service.api.auth import Caller
from service.api.problems import field_problem, not_found, spec_problem
from service.datasets.versions import service as versions
from service.db.locks import lock_quota, lock_tenant
from service.db.models import Checkpoint, Dataset, DatasetVersion, Job, Token
from service.jobs import clones, costs, idempotency, repository, tenant_limits
from service.jobs.path_checks import CheckedSpec
from service.jobs.schemas import JobEstimate, SubmittedJob
from service.jobs.views import job_view
from service.scheduling import capacity
from service.scheduling import repository as scheduling
from service.settings import ClusterLimit
from service.tokens.service import check_queue
from service.wire.jobs import AdviceView, ExperimentPlace


@dataclass(frozen=True)
class Plan:
    """A spec, the same resolved, and the versions of its data sets."""

    spec: JobSpec
    resolved: ResolvedJobSpec
    estimate: JobEstimate
    dataset: Dataset
    version: DatasetVersion
    evaluate_version: DatasetVersion | None
    warnings: list[str]
    advice: list[AdviceView]

    @property
    def held_out_images(self) -> int | None:
        """Number of images to evaluate on; the expected number if whole classes are held out.

        None without held-out images, and with a gallery, whose images are not used as queries.
        """
        if self.resolved.evaluate.gallery is not None:
            return None
        return self.estimate.held_out_images or None

    def with_seed(self, seed: int, name: str) -> Plan:
        """Return the plan with another seed and name, on which no other setting depends."""
        # Unset fields of the spec stay unset, for the stored document.
        changed = {"seed": seed}
        spec = {"train": self.spec.train.model_copy(update=changed), "name": name}
        resolved = {"train": self.resolved.train.model_copy(update=changed), "name": name}
        return replace(
            self,
            spec=self.spec.model_copy(update=spec),
            resolved=self.resolved.model_copy(update=resolved),
        )


def plan(
    session: Session,
    caller: Caller,
    checked: CheckedSpec,
    cluster_limit: ClusterLimit,
    *,
    lock: bool = False,
    from_checkpoint: bool = False,
    with_advice: bool = False,
) -> Plan:
    """Find the data sets of a spec and resolve it.

    Args:
        caller: its tenant has the data sets, and the quota of its token may allow too few GPUs.
        cluster_limit: the largest cluster, which the job must fit on.
        lock: whether to lock the data sets against deletion until this writing transaction ends.
        from_checkpoint: whether the job continues from a checkpoint, which has weights.
        with_advice: whether to seek advice, which resolves several other specs.

    Raises:
        Problem: 422 naming each field at fault; 409 while a data set is still being ingested.
    """
    tenant, spec, hours = caller.tenant, checked.spec, checked.spec.resources.max_hours
    tenant_limits.check_caps(session, tenant, priority=spec.priority, hours=hours)
    dataset, version = versions.find_ready(session, tenant, spec.dataset, "dataset", lock=lock)
    evaluate_version, evaluated = None, None
    if spec.evaluate.dataset is not None:
        name, field = spec.evaluate.dataset, "evaluate.dataset"
        other, evaluate_version = versions.find_ready(session, tenant, name, field, lock=lock)
        evaluated = DatasetFacts.model_validate(evaluate_version.facts)
        if other.id == dataset.id:  # once by name, once by id
            raise field_problem(field, NOT_ITS_DATASET, name, ANOTHER_DATASET)
    facts = DatasetFacts.model_validate(version.facts)
    room = capacity.check_capacity(
        session,
        spec.resources,
        cluster_limit,
        max_gpus=scheduling.max_gpus(session, tenant, caller.token_id),
    )
    problems = [*checked.problems, *room.problems]
    resolve = partial(
        resolve_spec,
        facts=facts,
        record=checked.record,
        from_checkpoint=from_checkpoint,
        has_gpus=room.has_gpus,
    )
    try:
        resolved = resolve(spec)
    except SpecError as error:
        problems += error.problems
    else:
        if spec.evaluate.dataset is not None and evaluated is not None:
            unfit = evaluation_problem(spec.evaluate.dataset, evaluated, facts, resolved.backbone)
            problems += [unfit] if unfit else []
    if problems:
        # Report one problem per field: too many workers may exceed both the cluster and the data.
        by_field: dict[str, FieldProblem] = {}
        for problem in problems:
            by_field.setdefault(problem.field, problem)
        raise spec_problem(list(by_field.values()))
    earlier = repository.speeds(session, tenant, spec.method.name) if room.worker else []
    estimate = costs.estimate(earlier, resolved, facts, evaluated, room.worker)
    warnings = room.warnings + costs.warnings(session, resolved, facts, estimate)
    if evaluate_version is not None:
        trained, images = (_class_images(each) for each in (version, evaluate_version))
        if unmatched := unmatched_classes(images, trained):
            warnings.append(f"evaluate.dataset: {unmatched}.")
    advice: list[AdviceView] = []
    if with_advice:

        def bounds(other: ResolvedJobSpec) -> tuple[float, float] | None:
            expected = costs.estimate(earlier, other, facts, evaluated, room.worker).seconds
            return (expected.low, expected.high) if expected is not None else None

        found = advise(spec, facts, resolve, bounds)
        advice = [AdviceView.model_validate(each) for each in found]
    return Plan(spec, resolved, estimate, dataset, version, evaluate_version, warnings, advice)


def _class_images(version: DatasetVersion) -> dict[str, int]:
    """Return the number of images by class; empty if the report has not all classes."""
    report = version.report or {}
    images = dict(
        zip(*(report.get(f"class_{each}", ()) for each in ("names", "images")), strict=False)
    )
    return images if len(images) == version.facts["num_classes"] else {}


def submit(
    session: Session,
    caller: Caller,
    checked: CheckedSpec,
    key: str | None,
    cluster_limit: ClusterLimit,
    *,
    find_checkpoint: Callable[[], Checkpoint] | None = None,
    request: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Queue a job.

    Args:
        checked: the spec; a replay ignores the problems of its paths.
        key: the Idempotency-Key. The same key with the same request replays the first answer.
        cluster_limit: as in `plan`.
        find_checkpoint: finds another job's checkpoint to start from; not called for a replay.
        request: the request that the key identifies, if it is not the spec itself.

    Returns:
        The first answer to the request, as it was stored, and whether this is a replay.

    Raises:
        Problem: as in `plan`; 404, the tenant was deleted; 422, the key was used for another request; 429, a
            quota is exhausted.
    """
    submitted = checked.spec.model_dump(mode="json", exclude_unset=True)
    keyed = idempotency.Request(
        caller.tenant,
        key,
        submitted if request is None else request,
        "job",
        lambda job_id: repository.get(session, caller.tenant, job_id) is not None,
    )
    queue_limit = lock_queue(session, caller)
    if (replay := keyed.replay(session)) is not None:
        return replay, True
    checkpoint = find_checkpoint() if find_checkpoint is not None else None
    if checkpoint is not None:
        checked = clones.continued(session, checked, checkpoint)
    planned = plan(
        session,
        caller,
        checked,
        cluster_limit,
        lock=True,
        from_checkpoint=checkpoint is not None,
    )
    if checkpoint is not None:
        clones.check_branch(session, planned.resolved, planned.evaluate_version, checkpoint)
    check_queue(session, caller, queue_limit)
    tenant_limits.check_queue(session, caller.tenant)
    job = enqueue(session, caller, planned, checkpoint=checkpoint)
    view = dict(job_view(job, planned.dataset.name))
    view["submitted_by"] = repository.submitted_by(session, job.id)
    answer = SubmittedJob(**view, estimate=planned.estimate, warnings=planned.warnings)
    return keyed.store(session, answer.model_dump(mode="json"), job.created_at)


def lock_queue(session: Session, caller: Caller) -> int | None:
    """Lock the tenant against deletion, and the token against concurrent submissions; return the token's limit.

    Raises:
        Problem: 404, the tenant was deleted.
    """
    if not lock_tenant(session, caller.tenant):
        raise not_found("tenant", caller.tenant)
    if not caller.has_queue_limit:
        return None
    return lock_quota(session, Token.max_queued_jobs, caller.token_id, caller.user_id)


def enqueue(
    session: Session,
    caller: Caller,
    planned: Plan,
    *,
    checkpoint: Checkpoint | None = None,
    experiment: ExperimentPlace | None = None,
) -> Job:
    """Queue a job whose quotas were checked."""
    spec, evaluated = planned.spec, planned.evaluate_version
    job = Job(
        id=ids.new_id("job"),
        tenant=caller.tenant,
        name=spec.name,
        method=spec.method.name,
        spec=spec.model_dump(mode="json", exclude_unset=True),
        resolved=planned.resolved.model_dump(mode="json"),
        spec_version=spec_versions.current(),
        priority=spec.priority,
        preemptible=spec.preemptible,
        tags=dict(spec.tags),
        dataset_id=planned.version.dataset_id,
        dataset_version=planned.version.number,
        evaluate_dataset_id=evaluated and evaluated.dataset_id,
        evaluate_dataset_version=evaluated and evaluated.number,
        created_at=datetime.now(UTC),
        token_id=caller.token_id,
        account_id=caller.account_id,
        start_checkpoint_id=checkpoint and checkpoint.id,
        experiment_id=experiment and experiment.id,
        variant=experiment and experiment.variant,
        seed=experiment.seed if experiment is not None else None,
    )
    lifecycle.enqueue(session, job)
    repository.add_tags(session, job)
    return job
