"""Clones: a job's spec with changes, and the checkpoint that the clone continues from."""

from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from dasl_core.headlines import is_ranked
from dasl_core.spec import (
    FieldProblem,
    JobSpec,
    ResolvedJobSpec,
    WeightsRecord,
    branch_problems,
    field_problems,
)
from service.api.problems import Problem, field_problem, spec_problem
from service.checkpoints import repository as checkpoints
from service.checkpoints import retention
from service.db.locks import lock_job
from service.db.models import Checkpoint, DatasetVersion
from service.db.session import Database
from service.jobs import repository, service
from service.jobs.path_checks import CheckedSpec
from service.jobs.schemas import CloneRequest


def clone_spec(database: Database, tenant: str, job_id: str, request: CloneRequest) -> JobSpec:
    """Apply the changes of a request to a job's submitted spec, on the same data sets.

    The data sets keep their versions if the clone continues from a checkpoint.

    Raises:
        Problem: 404; 422, the changed spec is invalid.
    """
    with database.read() as session:
        job = service.get(session, tenant, job_id)
    continues = request.checkpoint is not None
    dataset, evaluated = job.dataset_id, job.evaluate_dataset_id
    if continues:
        dataset = f"{dataset}@{job.dataset_version}"
        evaluated = evaluated and f"{evaluated}@{job.evaluate_dataset_version}"
    datasets_by_id: dict[str, Any] = {"dataset": dataset}
    if evaluated is not None:
        datasets_by_id["evaluate"] = {"dataset": evaluated}
    source = merge(job.submitted_spec, datasets_by_id)
    if continues and (source.get("train") or {}).get("precision", "auto") == "auto":
        # Keep the checkpoint's precision, whether or not the clone's ranks have GPUs.
        source = merge(source, {"train": {"precision": job.resolved_spec.train.precision}})
    try:
        return JobSpec.model_validate(merge(source, request.changes))
    except ValidationError as error:
        raise spec_problem(field_problems(error, JobSpec)) from error


def continued(session: Session, checked: CheckedSpec, start: Checkpoint) -> CheckedSpec:
    """Return the checked spec of a job that continues from a checkpoint, which contains all weights.

    The weights that its source started from are not read: they may be gone, and the images are normalized
    like the source's.
    """
    source, backbone = repository.by_id(session, start.job_id).resolved_spec, checked.spec.backbone
    is_normalized_alike = "auto" in (backbone.mean, backbone.std)
    record = WeightsRecord(
        source.backbone.normalization if is_normalized_alike else None,
        source.backbone.stem,
        source.backbone.image_size,
        source.backbone.in_channels,
    )
    problems = [problem for problem in checked.problems if problem.field != "backbone.pretrained"]
    return replace(checked, problems=problems, record=record)


def find_start_checkpoint(
    session: Session, tenant: str, job_id: str, checkpoint_id: str
) -> Checkpoint:
    """Find the checkpoint of a job to start a clone from: "newest", "best", or by id.

    Raises:
        Problem: 409, the job has no checkpoint; 422, it has none with this id, or none is the best.
    """
    if checkpoint_id == "best":
        checkpoint = _best_checkpoint(session, job_id)
    elif checkpoint_id == "newest":
        # Wait for a registration in progress: it may retire the previous checkpoint before the new one is visible.
        lock_job(session, job_id)
        checkpoint = checkpoints.newest(session, job_id, for_update=True)
    else:
        checkpoint = checkpoints.get(session, tenant, checkpoint_id, for_update=True)
        if (
            checkpoint is None
            or checkpoint.job_id != job_id
            or checkpoint.state != checkpoints.REGISTERED
        ):
            damaged = checkpoint is not None and checkpoint.state == checkpoints.DAMAGED
            message = "is damaged" if damaged else "is not one of this job's"
            expected = "newest, best, or the id of one of its checkpoints"
            raise field_problem("checkpoint", message, checkpoint_id, expected)
    if checkpoint is None:
        raise Problem(
            409,
            "no-checkpoint",
            'The job has no checkpoint yet; wait for one, or start from scratch with "checkpoint": null '
            "(dasl clone --checkpoint none)",
        )
    return checkpoint


def _best_checkpoint(session: Session, job_id: str) -> Checkpoint | None:
    if (job := lock_job(session, job_id)) is None:
        return None
    policy = job.resolved_spec.checkpoints
    ranked = retention.best_first(policy, checkpoints.lock_all(session, job.id))
    if ranked and not is_ranked(ranked[0].metrics, policy.best_by):
        metric = policy.best_by or "knn_top1 or recall_at_1"
        raise field_problem(
            "checkpoint", f"no checkpoint of this job has {metric}", "best", "newest, or an id"
        )
    return ranked[0] if ranked else None


def check_branch(
    session: Session,
    resolved: ResolvedJobSpec,
    evaluated: DatasetVersion | None,
    start: Checkpoint,
) -> None:
    """Check that a job, evaluated on a version of a data set, can continue from another job's checkpoint.

    Raises:
        Problem: 422 naming each field at fault.
    """
    job = repository.by_id(session, start.job_id)
    source, before = job.resolved_spec, (job.evaluate_dataset_id, job.evaluate_dataset_version)
    after = (None, None) if evaluated is None else (evaluated.dataset_id, evaluated.number)
    problems = branch_problems(_evaluated_on(source, *before), _evaluated_on(resolved, *after))
    weights = resolved.backbone.pretrained
    if weights not in (None, source.backbone.pretrained):
        message = "has no effect: the clone continues with the weights of its checkpoint"
        expected = (
            'no change, or "checkpoint": null (dasl clone --checkpoint none) to start from them'
        )
        problems.append(FieldProblem("backbone.pretrained", message, str(weights), expected))
    if resolved.train.epochs <= start.epoch:
        message = f"leaves nothing to train: the checkpoint is of epoch {start.epoch:g}"
        expected = f"more than {start.epoch:g}, or a start from scratch"
        problems.append(FieldProblem("train.epochs", message, str(resolved.train.epochs), expected))
    if problems:
        raise spec_problem(problems)


def _evaluated_on(
    spec: ResolvedJobSpec, dataset_id: str | None, version: int | None
) -> ResolvedJobSpec:
    """Name the data set to evaluate on by its id and version, for which a spec has several names."""
    name = dataset_id and f"{dataset_id}@{version}"
    evaluate = spec.evaluate.model_copy(update={"dataset": name})
    return spec.model_copy(update={"evaluate": evaluate})


def merge(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `spec` with the fields of `changes`; sections that both have are merged recursively."""
    merged = dict(spec)
    for name, value in changes.items():
        before = merged.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            value = merge(before, value)
        merged[name] = value
    return merged
