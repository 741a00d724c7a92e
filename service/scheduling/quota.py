"""Quotas of the running jobs of an account or tenant, and the part that is kept for a waiting job."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Self

from service.ids import is_id


class Owner(NamedTuple):
    """A user, a token without user, or a tenant, whose jobs share a quota."""

    kind: Literal["user", "token", "tenant"]
    id: str


def owners(account_id: str | None, tenant: str | None) -> list[Owner]:
    """Return the owners of a job that are known: its user or token, and its tenant."""
    known = []
    if account_id is not None:
        known.append(Owner("user" if is_id("usr", account_id) else "token", account_id))
    return [*known, Owner("tenant", tenant)] if tenant is not None else known


@dataclass(frozen=True)
class Quota:
    """Limits on the running jobs of one owner; `None` means unlimited."""

    max_running_jobs: int | None = None
    max_gpus: int | None = None

    def excess(self, jobs: int, gpus: int, needed: int) -> str | None:
        """Return how one more job would exceed the quota, as a clause; `None` if it would not.

        Args:
            jobs: running jobs of the owner.
            gpus: GPUs in use by the owner.
            needed: GPUs of the job.
        """
        if self.max_running_jobs is not None and jobs >= self.max_running_jobs:
            return f"max_running_jobs is {self.max_running_jobs}, with {jobs} running"
        if self.max_gpus is not None and needed and gpus + needed > self.max_gpus:
            return f"max_gpus is {self.max_gpus}, {gpus} are in use, and it needs {needed}"
        return None

    def ever_allows(self, needed: int) -> bool:
        """Whether a job with this number of GPUs may run if no other job of the owner does."""
        return self.excess(0, 0, needed) is None


NO_QUOTA = Quota()


@dataclass
class QuotaReservation:
    """The part of an owner's quota that is kept, from `at` on, for its first waiting job.

    `jobs` and `gpus` count the owner's other jobs that may still run at that time.
    """

    job_id: str
    quota: Quota
    needed: int
    at: datetime
    jobs: int
    gpus: int

    @classmethod
    def at_earliest(
        cls,
        job_id: str,
        quota: Quota,
        needed: int,
        running: Iterable[tuple[datetime, int]],
        now: datetime,
    ) -> Self:
        """Reserve from the earliest time at which the quota is certain to allow the job.

        Args:
            needed: GPUs of the job; the quota must allow it when no other job runs.
            running: latest end and GPUs of each running job of the owner.
        """
        jobs, at = sorted(running, reverse=True), now
        while quota.excess(len(jobs), sum(gpus for _, gpus in jobs), needed) is not None:
            at = max(at, jobs[-1][0])
            jobs = [(end, gpus) for end, gpus in jobs if end > at]
        return cls(job_id, quota, needed, at, len(jobs), sum(gpus for _, gpus in jobs))

    def is_delayed_by(self, ends_by: datetime, gpus: int) -> bool:
        """Whether another job of the owner would delay the reserved one if it started now."""
        if ends_by <= self.at:
            return False
        return self.quota.excess(self.jobs + 1, self.gpus + gpus, self.needed) is not None

    def add(self, ends_by: datetime, gpus: int) -> None:
        """Count another job of the owner that starts now."""
        if ends_by > self.at:
            self.jobs += 1
            self.gpus += gpus
