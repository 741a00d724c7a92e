"""Ways in which the stored spec of a job can be unreadable."""

from collections.abc import Callable
from typing import Any

from service.db.models import Job


def fail_on_unexpected(spec: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 1, or raise a `KeyError` for a spec that this upgrader does not expect."""
    return {**spec, "resources": dict(spec["resources"])}


def _store(resolved: Any, version: Any = 2) -> Callable[[Job], None]:
    def change(job: Job) -> None:
        job.resolved, job.spec_version = resolved, version

    return change


UNREADABLE: dict[str, Callable[[Job], None]] = {
    "empty": _store({}),
    "list": _store([]),
    "upgrader raises": _store({}, version=1),
    "resources without fields": _store({"resources": {}}),
    "version 0": _store({"resources": {}}, version=0),
    "newer": _store({"resources": {}}, version=3),
}
"""Each changes a job whose readable spec is of version 1 or 2; `fail_on_unexpected` is the only upgrader."""
