"""Progress of what a command waits for: notes about a record, bars of files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from service.cli import console

if TYPE_CHECKING:
    from service.client.sync.files import OnBytes

Record = TypeVar("Record")

_SECONDS_BETWEEN_NOTES = 10.0


def progress_notes(describe: Callable[[Record], str | None]) -> Callable[[Record], None]:
    """Return a function that notes the progress of a record every ten seconds; with --json, never."""
    noted_at = time.monotonic()

    def on_poll(record: Record) -> None:
        nonlocal noted_at
        if console.as_json() or time.monotonic() - noted_at < _SECONDS_BETWEEN_NOTES:
            return
        if (progress := describe(record)) is not None:
            console.note(f"  {progress}")
            noted_at = time.monotonic()

    return on_poll


@contextmanager
def progress_bars() -> Iterator[OnBytes]:
    """Show a bar for each file on stderr, if that is a terminal."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, rich.TaskID] = {}

        def on_bytes(name: str, received: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=received)

        yield on_bytes
