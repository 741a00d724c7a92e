"""`dasl export`: convert a downloaded checkpoint on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from dasl_core.vocabulary import ExportFormat
from service.cli import console
from service.cli.files import checkpoint_id
from service.cli.inputs import Force, connect
from service.cli.models import finished
from service.cli.progress import progress_bars

app = typer.Typer()


@app.command()
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT_DIR|CHECKPOINT|JOB",
            help="Folder of a downloaded checkpoint; or the id of one, or of a job, for its final or newest checkpoint, "
            "which the service exports.",
        ),
    ],
    format: Annotated[
        ExportFormat,
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
            help="File or folder to write. Default: in the checkpoint's folder, or a folder named after the id.",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Convert a checkpoint to another format: a downloaded one here, without a service, or one of a service there."""
    if "/" not in checkpoint and not Path(checkpoint).exists():
        _export_there(checkpoint, format, output, force)
        return
    if not Path(checkpoint).is_dir():
        raise typer.BadParameter(f"{checkpoint} is not the folder of a downloaded checkpoint")
    with console.core_extra("export"):
        from dasl_core.export.formats import export_checkpoint
    try:
        path = export_checkpoint(Path(checkpoint), format, output, force=force)
    except ValueError as error:
        raise console.fail(str(error)) from error
    console.print_result({"format": format, "path": str(path)}, f"Wrote {path}.")


def _export_there(checkpoint: str, format: ExportFormat, output: Path | None, force: bool) -> None:
    """Let the service export a checkpoint, and download the files."""
    with connect() as client:
        checkpoint = checkpoint_id(client, checkpoint, best=False)
        run = client.checkpoints.export(checkpoint, format)
        run = finished(client, run, f"Exporting {checkpoint}")
        folder = output or Path(run.id)
        with progress_bars() as on_bytes:
            client.model_runs.download(run, folder, on_bytes=on_bytes, force=force)
    path = folder / run.files[0].name if len(run.files) == 1 else folder
    console.print_result({"format": format, "path": str(path)}, f"Wrote {path}.")
