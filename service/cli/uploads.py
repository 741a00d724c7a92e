"""`dasl datasets add --upload`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from service.cli.output import note, size

if TYPE_CHECKING:
    from service.client import Client
    from service.client.sync.models import Dataset
    from service.client.sync.uploads import OnBytes

_MAX_SKIPPED_SHOWN = 10


def check_uploadable(path: str, follow_links: bool) -> None:
    """Check the options of an upload.

    Raises:
        typer.BadParameter: they cannot be combined.
    """
    if "://" in path:
        raise typer.BadParameter(
            f"{path} is not on this machine; leave out --upload", param_hint="LOCATION"
        )
    if follow_links:
        raise typer.BadParameter(
            "links out of the folder are not uploaded", param_hint="--follow-links"
        )


def upload_images(client: Client, path: str, name: str, source: dict[str, Any]) -> Dataset:
    """Upload a file or folder, with a bar on a terminal."""
    from service.client.packing import FolderContent, open_content

    content = open_content(Path(path).expanduser())
    if isinstance(content, FolderContent):
        note(f"Packing {content.num_images:,} images ({size(content.size)}) ...")
        for skipped in content.skipped[:_MAX_SKIPPED_SHOWN]:
            note(f"  left out: {skipped} (a link that leads out of the folder, or not readable)")
        if (hidden := len(content.skipped) - _MAX_SKIPPED_SHOWN) > 0:
            note(f"  left out: {hidden} more")
    with _bar() as on_bytes:
        return client.datasets.upload_content(content, name, source, on_bytes=on_bytes)


@contextmanager
def _bar() -> Iterator[OnBytes]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("upload", total=None)
        began_at: int | None = None

        def on_bytes(received: int, total: int) -> None:
            nonlocal began_at
            if began_at is None:
                began_at = received
                if received:
                    note(f"Resuming: the server has {size(received)} of {size(total)}")
            progress.update(task, completed=received, total=total)

        yield on_bytes
