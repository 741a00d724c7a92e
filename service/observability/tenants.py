"""Use of the cluster by tenant, for a bounded number of tenants."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.observability import repository
from service.scheduling import repository as scheduling
from service.states import JobStatus

MOST_TENANTS = 50
"""Number of tenants with separate labels; each takes three series."""
OTHERS = "_other"
"""Label of all other tenants together."""
_RUNNING = (JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PAUSING, JobStatus.CANCELLING)


@dataclass(frozen=True)
class TenantUse:
    """Jobs and GPUs by tenant; tenants without either are left out."""

    running: Mapping[str, float]
    queued: Mapping[str, float]
    gpus: Mapping[str, float]


def read_tenants(session: Session) -> TenantUse:
    """Read the use of all tenants; beyond the limit, tenants with the fewest jobs are added up."""
    running = Counter(repository.jobs_by_tenant(session, _RUNNING))
    queued = Counter(repository.jobs_by_tenant(session, (JobStatus.QUEUED,)))
    attempts = [item for item in scheduling.live_attempts(session) if item.demand.gpus]
    tenants = repository.tenants_by_job(session, {attempt.job_id for attempt in attempts})
    gpus: Counter[str] = Counter()
    for attempt in attempts:
        gpus[tenants[attempt.job_id]] += attempt.demand.gpus
    by_size = (running + queued).most_common(MOST_TENANTS)
    named = sorted(tenant for tenant, _ in by_size)
    return TenantUse(*(_bounded(counts, named) for counts in (running, queued, gpus)))


def _bounded(counts: Counter[str], named: list[str]) -> dict[str, float]:
    values: dict[str, float] = {tenant: counts[tenant] for tenant in named}
    rest = sum(counts.values()) - sum(values.values())
    return values | ({OTHERS: rest} if rest else {})
