"""`dasl datasets add --upload`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from service.cli.output import note, size
from service.cli.progress import progress_bars

if TYPE_CHECKING:
    from service.client import Client
    from service.client.sync.models import Dataset

_MAX_SKIPPED_SHOWN = 10


def check_uploadable(path: str, follow_links: bool) -> None:
    """Check that the options of an upload can be combined."""
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
    is_first = True
    with progress_bars() as on_bytes:

        def on_upload(received: int, total: int) -> None:
            nonlocal is_first
            if is_first and received:
                note(f"Resuming: the server has {size(received)} of {size(total)}")
            is_first = False
            on_bytes("upload", received, total)

        return client.datasets.upload_content(content, name, source, on_bytes=on_upload)
