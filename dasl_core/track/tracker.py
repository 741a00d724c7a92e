"""Interface of a tracker, and its description of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from dasl_core.spec import ResolvedJobSpec
from dasl_core.vocabulary import Outcome

Ending = Outcome | Literal["superseded"]
"""Outcome of the run for a tracker; superseded: a newer attempt continues it."""


class Point(NamedTuple):
    """Finite values of one step; `time` is in seconds since 1970."""

    step: int
    time: float
    values: dict[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """Description of a run for trackers.

    Attributes:
        id: id of the job; the same in all attempts.
        attempt: number of the attempt, from 1 on.
        resume_step: the last step of the checkpoint to resume from; None: from scratch.
        folder: folder for the files of trackers.
        publish: stores a file for users; None: they have access to `folder`.
        url: address of the job's page.
        hosts: the only hosts that may be contacted; None: all.
    """

    id: str
    attempt: int
    spec: ResolvedJobSpec
    resume_step: int | None
    folder: Path
    publish: Callable[[Path], None] | None = None
    url: str | None = None
    hosts: Sequence[str] | None = None


class TrackerUnusable(Exception):
    """The tracker cannot work in this run; non-retryable."""


class Tracker(Protocol):
    """Records a run. All methods are called in one thread, and may block.

    After an `OSError` the call is retried later; `TrackerUnusable` is final.

    Attributes:
        name: display name.
        key: field in `track` of the spec.
    """

    name: str
    key: str

    def start(self) -> str:
        """Start or continue the run; return its address for users."""

    def log(self, points: Sequence[Point]) -> None:
        """Record points. After an error, all or none may be recorded; a retry records them once."""

    def publish(self) -> None:
        """Store the recorded points where users have access."""

    def finish(self, ending: Ending) -> None:
        """Record the end of the run, or of its attempt."""

    def close(self) -> None:
        """Release the tracker's resources, even after failures."""
