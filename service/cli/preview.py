"""`dasl preview`: views of a folder of images as a spec would draw them, without a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.inputs import Overrides, SpecFile
from service.cli.output import core_extra
from service.cli.train import existing


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(preview)


def preview(
    spec: SpecFile,
    overrides: Overrides,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", file_okay=False, help="Folder for the pictures."
        ),
    ] = Path("build/preview"),
    data: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            callback=existing,
            help="Folder of images, or an archive, list or table of them; a path, or a URI such as "
            "s3://BUCKET/FOLDER. Default: `dataset` in the spec, read as a path.",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use one split of the images only.")
    ] = None,
    evaluate_data: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            callback=existing,
            help="Images that the training evaluates on, so that it holds out none of the others.",
        ),
    ] = None,
    images: Annotated[
        int, typer.Option(min=1, max=64, help="How many images, the first ones of a training.")
    ] = 8,
) -> None:
    """Draw the views that training by a spec would draw, without a service: a contact sheet and single images."""
    with core_extra("preview"):
        from dasl_core.standalone.inputs import DataOptions
        from dasl_core.standalone.preview import preview as run
    options = DataOptions(data, split, evaluate_data)
    raise typer.Exit(run(spec, options, output, overrides, images))
