"""Records with methods of the asynchronous client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PrivateAttr

from service.client.models import DatasetRecord, JobRecord

if TYPE_CHECKING:
    from service.client.aio.datasets import AsyncDatasets
    from service.client.aio.jobs import AsyncJobs


class AsyncJob(JobRecord):
    """Snapshot of a job. Methods such as `wait` and `refresh` return a new record."""

    _jobs: AsyncJobs | None = PrivateAttr(default=None)

    async def refresh(self) -> AsyncJob:
        """Return the current state of the job."""
        return await self._bound().get(self.id)

    async def wait(self, timeout: float | None = None, poll: float = 1.0) -> AsyncJob:
        """Wait until the job has succeeded; see `AsyncJobs.wait`."""
        return await self._bound().wait(self.id, timeout=timeout, poll=poll)

    async def cancel(self) -> AsyncJob:
        """Cancel the job; a running one stops after its current step."""
        return await self._bound().cancel(self.id)

    async def pause(self) -> AsyncJob:
        """Pause the job; a running one saves a checkpoint after its current step."""
        return await self._bound().pause(self.id)

    async def resume(self) -> AsyncJob:
        """Resume the paused job; it continues from its last checkpoint."""
        return await self._bound().resume(self.id)

    def _bound(self) -> AsyncJobs:
        if self._jobs is None:
            raise RuntimeError(
                f"{self.id}: this job does not come from a client. Get it with `client.jobs.get`."
            )
        return self._jobs


class AsyncDataset(DatasetRecord):
    """A data set of a client."""

    _datasets: AsyncDatasets | None = PrivateAttr(default=None)

    async def wait(self, timeout: float | None = None, poll: float = 0.5) -> AsyncDataset:
        """Wait until the data set is ready; see `AsyncDatasets.wait`."""
        if self._datasets is None:
            raise RuntimeError(
                f"{self.id}: this data set does not come from a client. Get it with `client.datasets.get`."
            )
        return await self._datasets.wait(self.id, timeout=timeout, poll=poll)
