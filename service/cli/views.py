"""Views of `dasl watch`: a live panel on a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from service.cli import console
from service.cli.formats import clean, duration, number, plain
from service.states import JobStatus

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from service.cli.watching import Snapshot, View
    from service.client.models import Progress
    from service.client.sync.models import Job
    from service.wire.events import EventView

_BARS = "▁▂▃▄▅▆▇█"
_STYLES: dict[str, str] = {
    JobStatus.QUEUED: "yellow",
    JobStatus.STARTING: "yellow",
    JobStatus.RETRY_WAIT: "yellow",
    JobStatus.PAUSING: "magenta",
    JobStatus.PAUSED: "magenta",
    JobStatus.RUNNING: "cyan",
    JobStatus.SUCCEEDED: "green",
    JobStatus.FAILED: "red",
    JobStatus.CANCELLED: "magenta",
}
_ACTIVE = (JobStatus.RUNNING, JobStatus.PAUSING, JobStatus.CANCELLING)
_EVENTS_SHOWN = 5
# In the order in which a step does them. Decoding is left out: its threads add up to more than the time.
_ACTIVITIES = {
    "data_wait": "data",
    "copy": "copy",
    "views": "views",
    "forward": "forward",
    "backward": "backward",
    "communication": "comm",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
}


@contextmanager
def choose_view() -> Iterator[View]:
    """Choose the view that suits stdout."""
    if console.as_json():
        yield JsonView()
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(refresh_per_second=4) as live:
            yield LiveView(live)
    else:
        yield PlainView()


class PlainView:
    """Print a line for each event, and a progress line at most every `every` seconds."""

    def __init__(self, every: float = 5.0) -> None:
        self._every = every
        self._line = ""
        self._printed_at = -every
        self._away = False
        self._note = ""

    def show(self, snapshot: Snapshot) -> None:
        """Print the changes since the last snapshot."""
        job = snapshot.job
        if self._away:
            console.print_line(_stamped("the server answers again"))
            self._away = False
        for event in snapshot.events:
            console.print_line(_stamped(_event_line(event), event.at))
        line = snapshot_line(snapshot)
        due = job.done or time.monotonic() - self._printed_at >= self._every
        if line and line != self._line and due:
            console.print_line(_stamped(line, job.finished_at))
            self._line, self._printed_at = line, time.monotonic()
        if job.done:
            console.print_line(_stamped(outcome_line(job), job.finished_at))

    def show_outage(self, reason: str) -> None:
        """Report an outage once."""
        if not self._away:
            console.print_line(_stamped(f"the server does not answer ({reason}); retrying"))
        self._away = True

    def show_note(self, text: str) -> None:
        """Print a new note once."""
        if text and text != self._note:
            console.print_line(_stamped(text))
        self._note = text


class JsonView:
    """Print one JSON document per line: `{"event": ...}`, `{"progress": ...}`, finally `{"job": ...}`."""

    def __init__(self) -> None:
        self._progress: object = None

    def show(self, snapshot: Snapshot) -> None:
        """Print the changes since the last snapshot."""
        for event in snapshot.events:
            console.print_json_line({"event": event})
        progress = plain(snapshot.job.progress) if snapshot.job.progress else None
        if progress and progress != self._progress:
            metrics = {accuracy.field: value for accuracy, value in snapshot.accuracies.items()}
            console.print_json_line({"progress": {**progress, **metrics}})
            self._progress = progress
        if snapshot.job.done:
            console.print_json_line({"job": snapshot.job})

    def show_outage(self, reason: str) -> None:
        """No-op: outages are not part of the JSON stream."""

    def show_note(self, text: str) -> None:
        """No-op: nor are notes."""


class LiveView:
    """Redraw a panel in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._events: list[EventView] = []
        self._snapshot: Snapshot | None = None
        self._note = ""

    def show(self, snapshot: Snapshot) -> None:
        """Draw the job."""
        self._events = [*self._events, *snapshot.events][-_EVENTS_SHOWN:]
        self._snapshot = snapshot
        self._draw(self._note)

    def show_outage(self, reason: str) -> None:
        """Draw the last known state with a remark about the outage."""
        self._draw(f"The server does not answer ({reason}); retrying.")

    def show_note(self, text: str) -> None:
        """Draw a note below the job until the next one."""
        self._note = f"{text[:1].upper()}{text[1:]}." if text else ""
        if self._note:
            self._draw(self._note)

    def _draw(self, remark: str) -> None:
        if self._snapshot is not None:
            self._live.update(draw(self._snapshot, self._events, remark), refresh=True)


def draw(snapshot: Snapshot, events: Sequence[EventView], remark: str = "") -> RenderableType:
    """Build the panel of a job."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    job, progress = snapshot.job, snapshot.job.progress
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    status = Text(job.status, style=_STYLES.get(job.status, "white"))
    if job.restarts:
        status.append(f"  (restarts: {job.restarts})", style="dim")
    grid.add_row("status", status)
    parts: list[RenderableType] = [grid]
    if (read := images_read(job)) is not None:
        grid.add_row("images read", read)
    if progress is not None:
        grid.add_row("epoch", f"{number(progress.epoch)} / {progress.epochs or '-'}")
        grid.add_row("step", f"{_count(progress.step)} / {_count(progress.total_steps)}")
        grid.add_row("images/s", _rate(progress.images_per_second))
        loss = Text(number(progress.loss).ljust(8))
        loss.append(sparkline(snapshot.losses), style="cyan")
        grid.add_row("loss", loss)
        for accuracy, value in snapshot.accuracies.items():
            grid.add_row(accuracy.label, _share(value))
        grid.add_row("time left", "-" if job.done else duration(progress.eta_seconds))
        if (times := times_line(progress)) is not None:
            grid.add_row("time", times)
        parts += ["", ProgressBar(total=progress.total_steps or 1, completed=progress.step or 0)]
    if events:
        parts += ["", *(Text(_stamped(clean(_event_line(e)), e.at), style="dim") for e in events)]
    if remark:
        parts += ["", Text(clean(remark), style="yellow")]
    if job.done:
        parts += ["", Text(clean(outcome_line(job)), style=_STYLES.get(job.status, "white"))]
    title = Text(clean(f"{job.name} · {job.id}"))
    return Panel(Group(*parts), title=title, title_align="left", width=78)


def snapshot_line(snapshot: Snapshot) -> str:
    """Format the progress: `epoch 3/100  step 12/400  812 images/s  loss 4.12  k-NN 41.2%  R@1 31.0%  3 min 10 s left`."""
    progress = snapshot.job.progress
    if (read := images_read(snapshot.job)) is not None:
        return f"read {read} images"
    if progress is None or progress.step is None:
        return ""
    parts = [
        f"epoch {number(progress.epoch)}/{progress.epochs or '-'}",
        f"step {progress.step}/{progress.total_steps or '-'}",
    ]
    if progress.images_per_second is not None:
        parts.append(f"{_rate(progress.images_per_second)} images/s")
    parts.append(f"loss {number(progress.loss)}")
    parts += [
        f"{accuracy.label} {_share(value)}"
        for accuracy, value in snapshot.accuracies.items()
        if value is not None
    ]
    if progress.eta_seconds is not None and not snapshot.job.done:
        parts.append(f"{duration(progress.eta_seconds)} left")
    if (times := times_line(progress)) is not None:
        parts.append(f"time: {times}")
    return "  ".join(parts)


def times_line(progress: Progress) -> str | None:
    """Return where the time goes, `data 3% · views 12% · forward 30%`; None if that is not known."""
    times = progress.times or {}
    shares = [
        f"{name} {percent}%"
        for activity, name in _ACTIVITIES.items()
        # Half a percent is one, not none as `round` has it.
        if (percent := math.floor(100 * times.get(activity, 0.0) + 0.5))
    ]
    return " · ".join(shares) or None


def images_read(job: Job) -> str | None:
    """Return how much of the image cache is built, `12,000 of 60,000`; None before and after that."""
    progress = job.progress
    if job.status not in _ACTIVE or progress is None or progress.images_read is None:
        return None
    if progress.images_read == progress.images_total:
        return None
    return f"{_count(progress.images_read)} of {_count(progress.images_total)}"


def outcome_line(job: Job) -> str:
    """Describe how the job ended, and the next command."""
    took = ""
    if job.started_at is not None and job.finished_at is not None:
        took = f" after {duration((job.finished_at - job.started_at).total_seconds())}"
    next_command = f". Download the backbone with: dasl download {job.id}"
    return f"{job.status}{took}{next_command if job.status == JobStatus.SUCCEEDED else ''}"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw a curve with at most `width` characters; each shows the mean of an equal share of values."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def _event_line(event: EventView) -> str:
    return event.message or event.type


def _stamped(text: str, at: datetime | None = None) -> str:
    moment = datetime.now() if at is None else at.astimezone()
    return f"{moment:%H:%M:%S}  {text}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
