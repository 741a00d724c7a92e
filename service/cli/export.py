"""`dasl export`: convert a downloaded checkpoint on this machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from service.cli.output import AsJson, core_extra, fail, print_result


class Format(StrEnum):
    """Export formats; the names of `dasl_core.export.FORMATS`, listed without importing torch."""

    ONNX = "onnx"
    TORCH_EXPORT = "torch-export"
    HF = "hf"
    TRANSFORMERS = "transformers"


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
            help="Format: onnx; torch-export, a .pt2 program; hf, a folder for the Hugging Face hub that timm loads; "
            "or transformers, such a folder of a DINOv2 or DINOv3 that transformers loads.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File or folder to write. Default: in the checkpoint's folder.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a downloaded checkpoint to another format. Needs no service."""
    with core_extra("export"):
        from dasl_core.export.formats import export_checkpoint
    try:
        path = export_checkpoint(checkpoint, format.value, output)
    except ValueError as error:
        raise fail(str(error)) from error
    print_result({"format": format.value, "path": str(path)}, f"Wrote {path}.", as_json)
