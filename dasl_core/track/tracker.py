"""The interface of a tracker, and the run that it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from dasl_core.spec import ResolvedJobSpec
from dasl_core.vocabulary import Outcome

Ending = Outcome | Literal["superseded"]
"""How the run ended for a tracker; superseded: a newer attempt continues it, possibly already."""


class Point(NamedTuple):
    """Finite values of one step; `time` is in seconds since 1970."""

    step: int
    time: float
    values: dict[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """The run as trackers know it.

    Attributes:
        id: of the job; the same in all attempts.
        attempt: number of the attempt, from 1 on.
        resume_step: the last step of the checkpoint that it continues from; None: from scratch.
        folder: for the files of trackers.
        publish: stores a file for users; None: they have access to `folder`.
        url: of the page that shows the job.
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

    @property
    def first_step(self) -> int:
        """The first step that this attempt reports: 0, of the baselines, if it starts from scratch."""
        return 0 if self.resume_step is None else self.resume_step + 1


class TrackerUnusable(Exception):
    """The tracker cannot work in this run; another try would not help."""


class Tracker(Protocol):
    """Records a run somewhere. All methods are called in one thread, and may block.

    An `OSError` is temporary: the call is repeated later. A `TrackerUnusable` is not.

    Attributes:
        name: for people.
        key: its field in `track` of the spec.
    """

    name: str
    key: str

    def start(self) -> str:
        """Begin or continue the run; returns the address where people find it."""

    def log(self, points: Sequence[Point]) -> None:
        """Record points. After an error, none or all of them may be recorded; a repetition records them once."""

    def publish(self) -> None:
        """Store what is recorded so far where people find it."""

    def finish(self, ending: Ending) -> None:
        """Record the end of the run, or of its attempt."""

    def close(self) -> None:
        """Release what the tracker holds, whatever failed before."""
