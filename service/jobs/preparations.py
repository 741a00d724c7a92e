"""Request preparations: resolve a spec like a job's, and queue the decoding."""

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service import ids
from service.api.auth import Caller
from service.api.problems import not_found
from service.datasets import repository as datasets
from service.datasets import service as datasets_service
from service.db.locks import lock_tenant, lock_token
from service.db.models import Preparation
from service.jobs import submission
from service.jobs.path_checks import CheckedSpec
from service.settings import ClusterLimit
from service.states import TaskState
from service.tasks.repository import preparations, same_preparation
from service.tasks.service import check_pending


def submit(
    session: Session, caller: Caller, checked: CheckedSpec, cluster_limit: ClusterLimit
) -> tuple[Preparation, bool]:
    """Queue the decoding of the newest version of a data set, unless an equal preparation is queued or running.

    Args:
        checked: a spec on the data set to prepare.
        cluster_limit: as in `submission.plan`.

    Returns:
        The preparation, and whether it is new.

    Raises:
        Problem: as in `submission.plan`; 404, the data set does not exist; 429, too many preparations are queued.
    """
    if not lock_tenant(session, caller.tenant):
        raise not_found("tenant", caller.tenant)
    lock_token(session, caller.token_id)
    dataset = datasets_service.get(session, caller.tenant, checked.spec.dataset)
    # Serialize concurrent requests.
    if datasets.lock(session, dataset.id) is None:
        raise not_found("data set", dataset.id)
    planned = submission.plan(session, caller, checked, cluster_limit, lock=True)
    resolved = planned.resolved
    wanted = Preparation(
        id=ids.new_id("prep"),
        tenant=caller.tenant,
        dataset_id=planned.dataset.id,
        dataset_version=planned.version.number,
        image_size=resolved.backbone.image_size,
        channels=resolved.backbone.in_channels,
        image_cache=resolved.train.image_cache,
        state=TaskState.QUEUED,
        token_id=caller.token_id,
        created_at=datetime.now(UTC),
    )
    if (same := same_preparation(session, wanted)) is not None:
        return same, False
    check_pending(session, preparations, caller)
    preparations.add(session, wanted)
    return wanted, True
