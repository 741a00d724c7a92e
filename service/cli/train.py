"""`dasl train`: training without a service; the same as `python -m dasl_core.standalone`."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli import console
from service.cli.inputs import (
    Force,
    LocalImages,
    LocalImagesToEvaluateOn,
    Overrides,
    SpecFile,
    Split,
    output_folder,
)

app = typer.Typer()


@app.command()
def train(
    spec: SpecFile,
    overrides: Overrides,
    output: Annotated[Path, output_folder("Folder for results.")] = Path("build/train"),
    data: LocalImages = None,
    split: Split = None,
    evaluate_data: LocalImagesToEvaluateOn = None,
    evaluate_split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Evaluate on one split of these images only.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint in the output.")
    ] = False,
    force: Force = False,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Only decode the images into the cache that the spec needs, as `dasl datasets prepare` does for a "
            "registered data set.",
        ),
    ] = False,
) -> None:
    """Train without a service, in this process. For several ranks: `torchrun -m dasl_core.standalone`."""
    with console.core_extra("train"):
        from dasl_core.standalone.inputs import DataOptions
        from dasl_core.standalone.main import train as run
    options = DataOptions(data, split, evaluate_data, evaluate_split)
    flags = {"resume": resume, "force": force, "prepare_only": prepare}
    raise typer.Exit(run(spec, options, output, overrides, **flags))
