"""Commands that bring a job's results home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connection import connect
from service.cli.names import JobId, known_by
from service.cli.output import AsJson, fail, figure, plain, print_json, print_table, say, size

if TYPE_CHECKING:
    from service.client import Client
    from service.client.files import OnBytes
    from service.client.models import Checkpoint


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(checkpoints)
    app.command()(download)
    app.command()(pin)
    app.command()(delete)
    app.command()(artifacts)


def checkpoints(job: JobId, as_json: AsJson = False) -> None:
    """List a job's checkpoints, oldest first."""
    with connect() as client:
        found = client.jobs.checkpoints(job)
    if as_json:
        print_json([plain(checkpoint) for checkpoint in found])
        return
    rows = [[c.id, c.step, figure(c.epoch), size(c.size), _marks(c), c.created_at] for c in found]
    print_table(["ID", "STEP", "EPOCH", "SIZE", "", "CREATED"], rows)


def download(
    checkpoint: Annotated[
        str,
        typer.Argument(
            callback=known_by, help="Id of a checkpoint, or of a job: its final or newest one."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", file_okay=False, help="Default: the id, as a folder."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a checkpoint; an interrupted download goes on where it stopped."""
    with connect() as client:
        chosen = _choose(client, checkpoint)
        directory = output or Path(chosen)
        with _progress() as on_bytes:
            places = client.checkpoints.download(chosen, directory, on_bytes=on_bytes)
    if as_json:
        files = [str(place) for place in places]
        print_json({"checkpoint": chosen, "directory": str(directory), "files": files})
        return
    print_table(["FILE", "SIZE"], [[place, size(place.stat().st_size)] for place in places])


CheckpointId = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", callback=known_by, help="Id of a checkpoint.")
]


def pin(
    checkpoint: CheckpointId,
    off: Annotated[bool, typer.Option("--off", help="Let it go again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a checkpoint, whatever its job's settings say."""
    with connect() as client:
        found = client.checkpoints.pin(checkpoint, not off)
    if as_json:
        print_json(plain(found))
    else:
        say(f"{found.id} is {'pinned' if found.pinned else 'no longer pinned'}.")


def delete(checkpoint: CheckpointId, as_json: AsJson = False) -> None:
    """Delete a checkpoint and its files."""
    with connect() as client:
        client.checkpoints.delete(checkpoint)
    if as_json:
        print_json({"deleted": checkpoint})
    else:
        say(f"{checkpoint} is deleted.")


def _marks(checkpoint: Checkpoint) -> str:
    marks = {"final": checkpoint.final, "pinned": checkpoint.pinned}
    return ", ".join(mark for mark, holds in marks.items() if holds)


def artifacts(
    job: JobId,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Download all here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a job's pictures, tables and other files, or download them with -o."""
    with connect() as client:
        found = client.jobs.artifacts(job)
        if output is not None:
            with _progress() as on_bytes:
                for artifact in found:
                    client.jobs.download_artifact(job, artifact, output, on_bytes=on_bytes)
    if as_json:
        place = None if output is None else str(output)
        print_json([{**plain(artifact), "directory": place} for artifact in found])
        return
    rows = [[artifact.name, size(artifact.size), artifact.content_type] for artifact in found]
    print_table(["NAME", "SIZE", "TYPE"], rows)
    if output is not None:
        say(f"{len(found)} files are in {output}.")


def _choose(client: Client, given: str) -> str:
    """The id of the checkpoint that is meant."""
    if not given.startswith("job_"):
        return given
    found = client.jobs.checkpoints(given)
    if not found:
        raise fail(f"Job {given} has no checkpoint yet; see it with: dasl show {given}")

    def rank(checkpoint: Checkpoint) -> tuple[bool, int, str]:
        return checkpoint.final, checkpoint.step, checkpoint.id

    return max(found, key=rank).id


@contextmanager
def _progress() -> Iterator[OnBytes]:
    """A bar for each file on a terminal's stderr; elsewhere silence."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {}

        def on_bytes(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=have)

        yield on_bytes
