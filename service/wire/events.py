"""Events of jobs."""

from datetime import datetime
from typing import Any, Literal

from service.states import TERMINAL
from service.wire.base import Answer

Level = Literal["info", "warning", "error"]


class EventView(Answer):
    """An event of a job; `seq` counts 1, 2, 3, ... within the job.

    An event of type `status` is a change of status, with `from`, `to` and `attempt` in its data.
    """

    seq: int
    at: datetime
    type: str
    level: Level
    message: str
    data: dict[str, Any]

    @property
    def ends_job(self) -> bool:
        """Whether this is the job's last event."""
        return self.type == "status" and self.data.get("to") in TERMINAL


class EventEntry(EventView):
    """An event of one of the tenant's jobs; `id` orders the events of all jobs, `seq` the events of its job."""

    id: int
    job_id: str
    job_name: str
