"""Clones: the spec of a job with changes, and the checkpoint that it continues from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from dasl_core.headlines import is_ranked
from dasl_core.spec import (
    DatasetFacts,
    FieldProblem,
    JobSpec,
    ResolvedJobSpec,
    SpecError,
    WeightsRecord,
    branch_problems,
    field_problems,
    resolve,
)
from dasl_core.spec.base import shorten
from service.api.problems import Problem, field_problem, spec_problem
from service.checkpoints import repository as checkpoints
from service.checkpoints import retention
from service.datasets.versions import repository as versions
from service.db.locks import lock_job
from service.db.models import Checkpoint, Job
from service.jobs import repository, service
from service.jobs.path_checks import PathChecks

# What a step and an evaluation are; a clone's name, data set, tags, resources and checkpoints are its own.
_MEANING = (
    "recipe",
    "method",
    "backbone",
    "augment",
    "dar",
    "sec",
    "regularizers",
    "train",
    "evaluate",
)


@dataclass(frozen=True)
class CloneSpec:
    """The spec of a clone.

    Attributes:
        kept: settings of the source that today's defaults would change, by their dotted names.
    """

    spec: JobSpec
    kept: dict[str, Any] = field(default_factory=dict)

    def message(self, source: str) -> str:
        """Describe the kept settings in a sentence."""
        settings = ", ".join(f"{name}: {shorten(value)}" for name, value in self.kept.items())
        return (
            f"Kept as an older version resolved them for {source}: {settings}. Set them to change them, or "
            "start from scratch for today's"
        )


def spec_of_clone(
    session: Session, tenant: str, job_id: str, changes: dict[str, Any], *, continues: bool
) -> CloneSpec:
    """Apply changes to a job's submitted spec, on the same data sets.

    Args:
        continues: from a checkpoint: the data sets keep their versions, and settings the meaning with which it was
            trained, also where an older version of DASL resolved them otherwise.

    Raises:
        Problem: 404; 422, the changed spec is invalid.
    """
    job = service.get(session, tenant, job_id)
    dataset, evaluated = job.dataset_id, job.evaluate_dataset_id
    if continues:
        dataset = f"{dataset}@{job.dataset_version}"
        evaluated = evaluated and f"{evaluated}@{job.evaluate_dataset_version}"
    datasets_by_id: dict[str, Any] = {"dataset": dataset}
    if evaluated is not None:
        datasets_by_id["evaluate"] = {"dataset": evaluated}
    source = merge(job.submitted_spec, datasets_by_id)
    if continues and (source.get("train") or {}).get("precision", "auto") == "auto":
        # That of its checkpoint, whether or not the clone's ranks have GPUs.
        source = merge(source, {"train": {"precision": job.resolved_spec.train.precision}})
    kept = _kept_settings(session, job, source, changes) if continues else {}
    try:
        spec = JobSpec.model_validate(merge(merge(source, kept), changes))
    except ValidationError as error:
        raise spec_problem(field_problems(error, JobSpec)) from error
    return CloneSpec(spec, dict(_leaves(_without(kept, changes))))


def checks_of_clone(
    session: Session, checks: PathChecks, spec: JobSpec, start: Checkpoint
) -> PathChecks:
    """Return the path checks of a job that continues from a checkpoint, which contains all weights.

    The weights that its source started from are not read: they may be gone, and the images are normalized
    as the source's were.
    """
    record = _record_of(repository.by_id(session, start.job_id))
    if "auto" not in (spec.backbone.mean, spec.backbone.std):
        record = record._replace(normalization=None)
    problems = [each for each in checks.problems if each.field != "backbone.pretrained"]
    return replace(checks, problems=problems, record=record)


def _record_of(job: Job) -> WeightsRecord:
    """Return what the checkpoints of a job record."""
    backbone = job.resolved_spec.backbone
    return WeightsRecord(
        backbone.normalization, backbone.stem, backbone.image_size, backbone.in_channels
    )


def _kept_settings(
    session: Session, job: Job, submitted: dict[str, Any], changes: dict[str, Any]
) -> dict[str, Any]:
    """Return the resolved settings of a job that the same submitted spec would not get today.

    What a changed recipe decides is not kept.
    """
    before, others = job.resolved_spec, dict(changes)
    if "recipe" in changes:
        submitted = {**submitted, "recipe": before.recipe}
        del others["recipe"]
    today = _resolved_today(session, job, submitted, others)
    if today is None:
        return {}  # the clone is refused, too
    kept = _differences(_meaning(before), _meaning(today))
    if "recipe" in changes:
        submitted = {**submitted, "recipe": changes["recipe"]}
        chosen = _resolved_today(session, job, submitted, others)
        if chosen is not None:
            kept = _without(kept, _differences(_meaning(today), _meaning(chosen)))
    return kept


def _resolved_today(
    session: Session, job: Job, submitted: dict[str, Any], changes: dict[str, Any]
) -> ResolvedJobSpec | None:
    """Resolve the submitted spec of a job again, with as few changes as remedy what is refused today."""
    version = versions.of_job(session, job.dataset_id, job.dataset_version)
    if version is None:
        return None
    facts = DatasetFacts.model_validate(version.facts)
    refused: set[str] = set()

    def resolved_with(remedy: dict[str, Any]) -> ResolvedJobSpec | None:
        try:
            spec = JobSpec.model_validate(merge(submitted, remedy))
            return resolve(spec, facts, _record_of(job), from_checkpoint=True)
        except SpecError as error:
            refused.update(problem.field for problem in error.problems)
        except ValidationError as error:
            refused.update(problem.field for problem in field_problems(error, JobSpec))
        return None

    return resolved_with({}) or resolved_with(_only(changes, refused)) or resolved_with(changes)


def _meaning(spec: ResolvedJobSpec) -> dict[str, Any]:
    # The data set to evaluate on has a name in one spec, and an id in another.
    return spec.model_dump(mode="json", include=set(_MEANING), exclude={"evaluate": {"dataset"}})


def _only(settings: dict[str, Any], fields: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Return the settings of these fields, by their dotted names."""
    chosen = {}
    for name, value in settings.items():
        path = f"{prefix}{name}"
        if path in fields:
            chosen[name] = value
        elif isinstance(value, dict) and (inner := _only(value, fields, f"{path}.")):
            chosen[name] = inner
    return chosen


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the values of `before` that `after` has otherwise; sections that both have are compared by field."""
    differing = {}
    for name, value in before.items():
        other = after.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            value = _differences(value, other)
            if value:
                differing[name] = value
        elif value != other:
            differing[name] = value
    return differing


def _without(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the changes do not name."""
    left = {}
    for name, value in settings.items():
        if name not in changes:
            left[name] = value
        elif isinstance(value, dict) and isinstance(changes[name], dict):
            left[name] = _without(value, changes[name])
    return left


def _leaves(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, dict):
            leaves += _leaves(value, f"{prefix}{name}.")
        else:
            leaves.append((f"{prefix}{name}", value))
    return leaves


def start_of_clone(session: Session, tenant: str, job_id: str, checkpoint_id: str) -> Checkpoint:
    """Return the checkpoint of a job to start a clone from: "newest", "best", or that with an id.

    Raises:
        Problem: 409, the job has no checkpoint; 422, it has none with this id, or none is the best.
    """
    if checkpoint_id == "best":
        checkpoint = _best_checkpoint(session, lock_job(session, job_id))
    elif checkpoint_id == "newest":
        # Wait for a registration in progress: it may retire the previous checkpoint before this one is visible.
        lock_job(session, job_id)
        checkpoint = checkpoints.newest_of_job(session, job_id, for_update=True)
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


def _best_checkpoint(session: Session, job: Job | None) -> Checkpoint | None:
    if job is None:
        return None
    policy = job.resolved_spec.checkpoints
    ranked = retention.best_first(policy, checkpoints.lock_of_job(session, job.id))
    if ranked and not is_ranked(ranked[0].metrics, policy.best_by):
        metric = policy.best_by or "knn_top1 or recall_at_1"
        raise field_problem(
            "checkpoint", f"no checkpoint of this job has {metric}", "best", "newest, or an id"
        )
    return ranked[0] if ranked else None


def check_branch(session: Session, resolved: ResolvedJobSpec, start: Checkpoint) -> None:
    """Check that a job can continue from another job's checkpoint.

    Raises:
        Problem: 422 naming each field at fault.
    """
    source = repository.by_id(session, start.job_id).resolved_spec
    problems = branch_problems(source, resolved)
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


def merge(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `spec` with the fields of `changes`; sections that both have are merged recursively."""
    merged = dict(spec)
    for name, value in changes.items():
        before = merged.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            value = merge(before, value)
        merged[name] = value
    return merged
