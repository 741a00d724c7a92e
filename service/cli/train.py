"""`dasl train`: a run in this process, or in each process of `torchrun`, with no service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.output import core_extra
from service.cli.specs import Overrides, SpecFile


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    spec: SpecFile,
    overrides: Overrides,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Where results go."),
    ] = Path("build/train"),
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Folder of images; without it the spec's `dataset` is taken as the folder.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint in the output.")
    ] = False,
) -> None:
    """Train without a service: here, or on several ranks with torchrun -m service.cli train ..."""
    with core_extra("train"):
        from dasl_core.train.local import main
    raise typer.Exit(main(spec, data, output, overrides, resume=resume))
