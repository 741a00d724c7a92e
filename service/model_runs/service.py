"""Request runs of finished models: check the settings against the checkpoint's spec, and queue the run."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from dasl_core.spec import DatasetFacts, ResolvedJobSpec, SpecError
from dasl_core.spec.finished import features_problem, images_problem, resolve_evaluation
from service import ids
from service.api.auth import Caller
from service.api.problems import not_found, spec_problem
from service.api.ranged_file import StoredFile
from service.checkpoints import repository as checkpoints
from service.checkpoints import service as checkpoints_service
from service.datasets.versions import repository as versions
from service.datasets.versions.service import find_ready
from service.db.locks import lock_tenant, lock_token
from service.db.models import Checkpoint, DatasetVersion, ModelRun
from service.model_runs.schemas import EmbeddingRequest, EvaluationRequest, ExportRequest
from service.protocol import EmbeddingSettings, ExportSettings, ModelRunKind
from service.states import TaskState
from service.tasks.repository import model_runs
from service.tasks.service import check_pending


def evaluate(
    session: Session, caller: Caller, checkpoint: Checkpoint, request: EvaluationRequest
) -> tuple[ModelRun, bool]:
    """Queue an evaluation of a checkpoint on a data set; see `_queue` and `_images`."""
    spec, version = _images(session, caller, checkpoint, request)
    try:
        facts = DatasetFacts.model_validate(version.facts)
        settings = resolve_evaluation(request.settings, spec, facts)
    except SpecError as error:
        raise spec_problem(error.problems) from error
    stored = settings.model_dump(mode="json")
    return _queue(session, caller, checkpoint, "evaluation", stored, version)


def embed(
    session: Session, caller: Caller, checkpoint: Checkpoint, request: EmbeddingRequest
) -> tuple[ModelRun, bool]:
    """Queue an embedding of a data set by a checkpoint; see `_queue` and `_images`."""
    spec, version = _images(session, caller, checkpoint, request)
    if problem := features_problem(request.features, spec.backbone):
        raise spec_problem([problem])
    fields = request.model_dump(include=set(EmbeddingSettings.model_fields))
    settings = EmbeddingSettings.model_validate(fields)
    return _queue(session, caller, checkpoint, "embedding", settings.model_dump(), version)


def export(
    session: Session, caller: Caller, checkpoint: Checkpoint, request: ExportRequest
) -> tuple[ModelRun, bool]:
    """Queue an export of a checkpoint; see `_queue`."""
    if not lock_tenant(session, caller.tenant):
        raise not_found("tenant", caller.tenant)
    lock_token(session, caller.token_id)
    settings = ExportSettings(format=request.format).model_dump()
    return _queue(session, caller, checkpoint, "export", settings, None)


def _images(
    session: Session,
    caller: Caller,
    checkpoint: Checkpoint,
    request: EvaluationRequest | EmbeddingRequest,
) -> tuple[ResolvedJobSpec, DatasetVersion]:
    """Return the spec of a checkpoint, and the version of a data set, which stays locked against deletion.

    Raises:
        Problem: 404, the tenant was deleted; 409, the data set is not ready; 422, it is not registered, or its images
            do not fit the backbone.
        UnreadableSpec: see `Job.resolved_spec`.
    """
    if not lock_tenant(session, caller.tenant):
        raise not_found("tenant", caller.tenant)
    lock_token(session, caller.token_id)
    job = checkpoints.get_job(session, checkpoint.id)
    spec = job.resolved_spec
    checkpoints.lock(session, checkpoint)  # before the data set: see `service.db.locks`
    name = request.dataset if request.version is None else f"{request.dataset}@{request.version}"
    _, version = find_ready(session, caller.tenant, name, "dataset", lock=True)
    facts = DatasetFacts.model_validate(version.facts)
    source = versions.get(session, job.dataset_id, job.dataset_version)
    if source is not None:
        trained = DatasetFacts.model_validate(source.facts)
    else:  # the images were deleted, so the spec has to do
        trained = facts.model_copy(update={"bands": spec.backbone.in_channels})
    if problem := images_problem(request.dataset, facts, trained, spec.backbone):
        raise spec_problem([problem])
    return spec, version


def _queue(
    session: Session,
    caller: Caller,
    checkpoint: Checkpoint,
    kind: ModelRunKind,
    settings: dict[str, Any],
    version: DatasetVersion | None,
) -> tuple[ModelRun, bool]:
    """Queue a run, unless an equal one is queued, running or succeeded.

    Returns:
        The run, and whether it is new.

    Raises:
        Problem: 410, the checkpoint was deleted or is damaged; 429, too many runs are queued.
    """
    # Serialize concurrent requests, and lock the checkpoint against deletion.
    checkpoints.lock(session, checkpoint)
    checkpoints_service.check_available(checkpoint)
    wanted = ModelRun(
        id=ids.new_id("mrun"),
        tenant=caller.tenant,
        dataset_id=version and version.dataset_id,
        dataset_version=version and version.number,
        checkpoint_id=checkpoint.id,
        kind=kind,
        settings=settings,
        state=TaskState.QUEUED,
        files=[],
        token_id=caller.token_id,
        created_at=datetime.now(UTC),
    )
    if (same := model_runs.same(session, wanted)) is not None:
        return same, False
    check_pending(session, model_runs, caller)
    model_runs.add(session, wanted)
    return wanted, True


def file(run: ModelRun, name: str) -> StoredFile:
    """Return a file of a run.

    Raises:
        Problem: 404.
    """
    entry = next((entry for entry in run.files if entry["name"] == name), None)
    if entry is None:
        raise not_found("file", name)
    return StoredFile(name, f"{run.uri}/{name}", entry["size"], entry["sha256"])
