"""The use of the cluster."""

from datetime import datetime

from service.wire.base import Answer


class UsageGroup(Answer):
    """Use of the cluster by the jobs of a user or token, or with a value of a tag."""

    value: str | None
    """The id of the user or token, or the tag's value; null: jobs without one."""
    name: str | None
    """The name of the user or token; null: a tag, or removed."""
    jobs: int
    gpu_hours: float
    cpu_hours: float


class UsageView(Answer):
    """Use of the cluster in whole hours, most first."""

    start: datetime
    end: datetime
    group_by: str
    data: list[UsageGroup]
    is_complete: bool
    """Whether all groups are in the answer."""
