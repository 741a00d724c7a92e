"""Request previews: resolve a spec like a job's, and queue the drawing."""

from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from dasl_core.spec import JobSpec, field_problems, versions
from service import ids
from service.api.auth import Caller
from service.api.problems import not_found, spec_problem
from service.datasets import service as datasets
from service.db.locks import lock_tenant, lock_token
from service.db.models import Preview
from service.db.rows import one
from service.jobs import idempotency, submission
from service.jobs.path_checks import CheckedSpec
from service.previews.schemas import PreviewRequest
from service.previews.service import preview_view
from service.settings import ClusterLimit
from service.states import TaskState
from service.tasks.repository import previews
from service.tasks.service import check_pending


def build_spec(dataset_id: str, spec: dict[str, Any], version: int | None = None) -> JobSpec:
    """Build the spec of a request on a version of the path's data set; None: the newest.

    Raises:
        Problem: 422, naming each field at fault.
    """
    try:
        dataset = dataset_id if version is None else f"{dataset_id}@{version}"
        return JobSpec.model_validate({**spec, "dataset": dataset})
    except ValidationError as error:
        raise spec_problem(field_problems(error, JobSpec)) from error


def submit(
    session: Session,
    caller: Caller,
    dataset_id: str,
    request: PreviewRequest,
    checked: CheckedSpec,
    key: str | None,
    cluster_limit: ClusterLimit,
) -> tuple[dict[str, Any], bool]:
    """Queue the drawing of a preview.

    Args:
        checked: the request's spec, from `build_spec`.
        key: the Idempotency-Key. The same key with the same request replays the first answer.
        cluster_limit: as in `submission.plan`.

    Returns:
        The first answer to the request, as it was stored, and whether this is a replay.

    Raises:
        Problem: as in `submission.plan`; 404, the data set does not exist; 429, too many previews are queued.
    """
    if not lock_tenant(session, caller.tenant):
        raise not_found("tenant", caller.tenant)
    keyed = idempotency.Request(
        caller.tenant,
        key,
        # Leave out the version, which the data set already names.
        {"preview": checked.spec.dataset} | request.model_dump(mode="json", exclude={"version"}),
        "preview",
        lambda preview_id: one(session, previews.owned(caller.tenant), preview_id) is not None,
    )
    if (replay := keyed.replay(session)) is not None:
        return replay, True
    lock_token(session, caller.token_id)
    datasets.get(session, caller.tenant, dataset_id)
    planned = submission.plan(session, caller, checked, cluster_limit, lock=True)
    check_pending(session, previews, caller)
    preview = Preview(
        id=ids.new_id("prev"),
        tenant=caller.tenant,
        dataset_id=dataset_id,
        dataset_version=planned.version.number,
        state=TaskState.QUEUED,
        spec=checked.spec.model_dump(mode="json", exclude_unset=True),
        resolved=planned.resolved.model_dump(mode="json"),
        spec_version=versions.current(),
        images=request.images,
        files=[],
        token_id=caller.token_id,
        created_at=datetime.now(UTC),
    )
    previews.add(session, preview)
    return keyed.store(session, preview_view(preview).model_dump(mode="json"), preview.created_at)
