"""`dasl init`: a first spec for a folder of images."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli import console
from service.cli.inputs import Force, Split, dataset_name, output_file

app = typer.Typer()


@app.command()
def init(
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="Folder, archive, list, table or URI, as `dasl train --data` takes it.",
        ),
    ],
    output: Annotated[Path, output_file("SPEC.yaml", "File to write.")] = Path("spec.yaml"),
    name: Annotated[
        str | None, typer.Option(help="Name of the data set. Default: that of the folder.")
    ] = None,
    split: Split = None,
    force: Force = False,
) -> None:
    """Look at images and write a spec for them, with advice in comments. Needs no server."""
    name = dataset_name(name, images)
    with console.core_extra("init"):
        from dasl_core.standalone.first_spec import init as run
        from dasl_core.standalone.images import ImageLocation
    raise typer.Exit(run(ImageLocation(images, split, "IMAGES"), name, output, force=force))
