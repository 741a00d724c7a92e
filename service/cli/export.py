"""`dasl export`: further formats of a downloaded checkpoint, made on this machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from service.cli.output import AsJson, core_extra, fail, print_json, say


class Format(StrEnum):
    """What a checkpoint can become; the names of `dasl_core.export.FORMATS`."""

    ONNX = "onnx"
    TORCH_EXPORT = "torch-export"
    HF = "hf"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT_DIR",
            exists=True,
            file_okay=False,
            help="Folder of a downloaded checkpoint.",
        ),
    ],
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            "-f",
            help="onnx; a torch.export program (.pt2); or the folder that Hugging Face's hub holds.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="Default: in the checkpoint's folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write another format of a downloaded checkpoint; needs no service."""
    with core_extra("export"):
        from dasl_core.export.formats import export_checkpoint
    try:
        written = export_checkpoint(checkpoint, format.value, output)
    except ValueError as error:
        raise fail(str(error)) from error
    if as_json:
        print_json({"format": format.value, "path": str(written)})
    else:
        say(f"Wrote {written}.")
