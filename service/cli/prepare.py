"""`dasl prepare`: lay out a published data set as folders of classes."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from service.cli import console


class Published(StrEnum):
    """Names of data sets; those of `dasl_core.data.published.PUBLISHED`, listed without importing numpy."""

    CUB200 = "cub200"
    CARS196 = "cars196"
    SOP = "sop"
    INSHOP = "inshop"
    CIFAR10 = "cifar10"
    CIFAR100 = "cifar100"
    IMAGENET100 = "imagenet100"
    IMAGENET = "imagenet"


app = typer.Typer()


@app.command()
def prepare(
    dataset: Annotated[
        Published, typer.Argument(metavar="NAME", help=f"One of {', '.join(Published)}.")
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            exists=True,
            help="Folder with the unpacked archives of the authors; for CIFAR also the archive itself, and for "
            "ImageNet its tar files.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            file_okay=False,
            help="Folder to write. Each part of the published split becomes a folder in it.",
        ),
    ],
) -> None:
    """Lay out a published data set and its split as folders of classes, by hard links. Needs no service.

    It decodes no images: `dasl datasets prepare` and `dasl train --prepare` do, before a training needs them.
    """
    with console.core_extra("prepare"):
        from dasl_core.data.published import prepare as run
    try:
        parts = run(dataset.value, source, target)
    except ValueError as error:
        raise console.fail(str(error)) from error
    for part in parts:
        if part.warning is not None:
            console.note(f"Warning: {part.warning}.")
    if console.print_if_json([{**asdict(part), "folder": str(part.folder)} for part in parts]):
        return
    for part in parts:
        console.print_line(f"{part.folder}: {part.images:,} images of {part.classes:,} classes")
