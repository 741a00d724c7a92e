"""`dasl preview` and `dasl datasets preview`: views as a spec would draw them, without and with a service."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dasl_core.outputs import PREVIEW_MARK, own_folder
from service.cli import console
from service.cli.dataset_views import DatasetId
from service.cli.formats import plain, size
from service.cli.inputs import (
    DownloadFolder,
    Force,
    LocalImages,
    LocalImagesToEvaluateOn,
    Overrides,
    SpecFile,
    Split,
    connect,
    file_option,
    output_folder,
    read_spec,
)

_Images = Annotated[
    int, typer.Option(min=1, max=64, help="How many images, the first ones of a training.")
]

app = typer.Typer()
dataset_commands = typer.Typer()


@app.command()
def preview(
    spec: SpecFile,
    overrides: Overrides,
    output: Annotated[Path, output_folder("Folder for the pictures.")] = Path("build/preview"),
    data: LocalImages = None,
    split: Split = None,
    evaluate_data: LocalImagesToEvaluateOn = None,
    images: _Images = 8,
    force: Force = False,
) -> None:
    """Draw the views that training by a spec would draw, without a service: a contact sheet and single images."""
    with console.core_extra("preview"):
        from dasl_core.standalone.inputs import DataOptions
        from dasl_core.standalone.preview import preview as run
    options = DataOptions(data, split, evaluate_data)
    raise typer.Exit(run(spec, options, output, overrides, images, force=force))


@dataset_commands.command("preview")
def preview_dataset(
    dataset: DatasetId,
    overrides: Overrides,
    spec: Annotated[
        Path, file_option("SPEC.yaml", "YAML or JSON file with a spec. Its `dataset` is ignored.")
    ],
    output: DownloadFolder = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Version of the data set. Default: the newest.")
    ] = None,
    images: _Images = 8,
    force: Force = False,
) -> None:
    """Draw the views of a data set that training by a spec would draw. Waits, and downloads them."""
    settings = read_spec(spec, [*overrides, f"dataset={json.dumps(dataset)}"])
    with connect() as client:
        record = client.datasets.get(dataset)
        preview = client.previews.request(record.id, settings, images=images, version=version)
        if not console.as_json():
            number = preview.dataset_version
            of_version = "" if number is None else f", version {number}"
            console.note(f"Drawing views of {record.name}{of_version} ({preview.id}) ...")
        preview = client.previews.wait(preview.id)
        folder = output or Path(preview.id)
        with own_folder(folder, PREVIEW_MARK, force=force) as force:
            files = client.previews.download(preview, folder, force=force)
    text = f"{folder / 'sheet.png'}: {len(files) - 1} more files beside it"
    console.print_result({**plain(preview), "directory": str(folder)}, text)


@dataset_commands.command("previews")
def list_previews(dataset: DatasetId) -> None:
    """List the previews of a data set, newest first."""
    shown = {
        **console.columns("id", "state", VERSION="dataset_version", IMAGES="images"),
        "SIZE": lambda preview: None if preview.size is None else size(preview.size),
        **console.columns("created_at"),
    }
    with connect() as client:
        console.print_records(client.previews.list(client.datasets.get(dataset).id), shown)
