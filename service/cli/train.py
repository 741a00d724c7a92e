"""`dasl train`: training without a service; the same as `python -m dasl_core.standalone`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.inputs import Overrides, SpecFile
from service.cli.output import core_extra


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    spec: SpecFile,
    overrides: Overrides,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Folder for results."),
    ] = Path("build/train"),
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            help="Folder of images, or an archive, list or table of them. Default: `dataset` in the spec, read "
            "as a path.",
        ),
    ] = None,
    evaluate_data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            help="Images to evaluate on, likewise. Default: `evaluate.dataset` in the spec, read as a path, if "
            "it is set.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint in the output.")
    ] = False,
) -> None:
    """Train without a service, in this process. For several ranks: `torchrun -m dasl_core.standalone`."""
    with core_extra("train"):
        from dasl_core.standalone.main import train as run
    raise typer.Exit(run(spec, data, output, overrides, evaluate_data=evaluate_data, resume=resume))
