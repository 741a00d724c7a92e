"""`dasl evaluate`, `dasl embed` and `dasl neighbors`: a finished model at work."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasl_core.outputs import check_replaceable
from dasl_core.vocabulary import EmbeddingFormat, EmbeddingType, FeatureKind
from service.cli import console
from service.cli.files import checkpoint_id
from service.cli.formats import duration, number, plain, size
from service.cli.inputs import Best, Force, connect, images_option, set_option, with_overrides
from service.cli.progress import progress_bars, progress_notes

if TYPE_CHECKING:
    from service.client import Client
    from service.client.models import ModelRun

_PHASES = {
    "decoding": "images decoded",
    "features": "images embedded",
    "evaluation": "batches evaluated",
}
CheckpointOrJob = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT|JOB",
        help="Id of a checkpoint; or of a job, for its final or newest checkpoint.",
    ),
]
_DATASET = typer.Option(
    "--dataset", metavar="DATASET", help="Id or name of the data set; NAME@NUMBER is a version."
)

app = typer.Typer()


@app.command()
def evaluate(
    checkpoint: CheckpointOrJob,
    dataset: Annotated[str, _DATASET],
    overrides: Annotated[
        list[str],
        set_option(
            "A field of `evaluate` of a spec, such as linear=true or holdout=null, which evaluates on all images. "
            "Can be repeated."
        ),
    ],
    best: Best = False,
    wait: Annotated[bool, typer.Option(help="Wait for the result.")] = True,
) -> None:
    """Evaluate a finished backbone on the images of a data set, as training does on held-out ones."""
    settings = with_overrides({}, overrides)
    with connect() as client:
        checkpoint = checkpoint_id(client, checkpoint, best)
        run = client.checkpoints.evaluate(checkpoint, dataset, settings=settings)
        if wait:
            run = finished(client, run, f"Evaluating {checkpoint} on {dataset}")
    if console.as_json():
        console.print_json(run)
    elif run.result is None:
        console.print_line(f"{run.id}: {run.state}")
    else:
        metrics: dict[str, dict[str, float]] = run.result.get("metrics") or {}
        names = {name: None for values in metrics.values() for name in values}
        rows = [[name, *(number(m.get(name)) for m in metrics.values())] for name in names]
        console.print_table(["METRIC", *(subject.upper() for subject in metrics)], rows)
        images = run.result.get("images")
        if images is not None and run.settings.get("holdout", {}) is not None:
            console.note(
                f"{images:,} images were evaluated; the others are the bank of k-NN. To evaluate all of them: "
                "--set holdout=null"
            )


@app.command()
def embed(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|JOB|DIR",
            help="Id of a checkpoint; or of a job, for its final or newest checkpoint; or with --data, the folder of a "
            "downloaded checkpoint.",
        ),
    ],
    dataset: Annotated[str | None, _DATASET] = None,
    data: Annotated[
        str | None,
        images_option(
            "Images on this machine, or at a URI, in place of a data set: no service is needed."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, .parquet or .safetensors; of a large embedding, which has several, a folder of this name.",
        ),
    ] = None,
    features: Annotated[
        FeatureKind,
        typer.Option(
            help="pooled: what training evaluates; cls: a transformer's class token; patch: a vector a patch."
        ),
    ] = "pooled",
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale each vector to length 1.")
    ] = False,
    dtype: Annotated[EmbeddingType, typer.Option(help="Type of the vectors.")] = "float32",
    best: Best = False,
    wait: Annotated[bool, typer.Option(help="Wait for the embedding.")] = True,
    force: Force = False,
) -> None:
    """Compute the features of all images of a data set with a finished backbone, to a file."""
    if (dataset is None) == (data is None):
        raise typer.BadParameter("pass either --dataset or --data")
    format = _format(output)
    what: dict[str, Any] = {"features": features, "normalize": normalize, "dtype": dtype}
    if data is not None:
        if output is None:
            raise typer.BadParameter("--data needs a file to write: -o FILE")
        with console.core_extra("embed"):
            from dasl_core.standalone.embed import embed as run_here
        result = run_here(Path(checkpoint), data, output, format, **what, force=force)
        if isinstance(result, str):
            raise console.fail(result)
        _print_embedding(result, output)
        return
    assert dataset is not None, "checked above"
    with connect() as client:
        checkpoint = checkpoint_id(client, checkpoint, best)
        run = client.checkpoints.embed(checkpoint, dataset, format=format, **what)
        if wait:
            run = finished(client, run, f"Embedding the images of {dataset}")
        if output is not None and run.state == "succeeded":
            _download(client, run, output, force)
    if console.as_json():
        console.print_json({**plain(run), "output": output and str(output)})
    elif run.result is None:
        console.print_line(f"{run.id}: {run.state}")
    else:
        _print_embedding(run.result, output)
        if output is None:
            console.print_line(
                f"{run.id}: {size(run.size)}. Repeat the command with -o FILE for the file."
            )


def _format(output: Path | None) -> EmbeddingFormat:
    suffix = "" if output is None else output.suffix
    if suffix in ("", ".parquet"):
        return "parquet"
    if suffix == ".safetensors":
        return "safetensors"
    raise typer.BadParameter(f"--output: {output} must end in .parquet or .safetensors")


def _print_embedding(result: dict[str, Any], output: Path | None) -> None:
    if console.print_if_json({**result, "output": output and str(output)}):
        return
    where = "" if output is None else f" in {output}"
    shape = " x ".join(map(str, result.get("shape", [])))
    unreadable = result.get("unreadable")
    missing = f"; {unreadable:,} cannot be read" if unreadable else ""
    rate = number(result.get("images_per_second"))
    console.print_line(
        f"{result.get('images', 0):,} images x {shape}{where}, {rate} images/s{missing}"
    )


def _download(client: Client, run: ModelRun, output: Path, force: bool) -> None:
    """Write the file of an embedding, or its files into a folder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if len(run.files) != 1:
        with progress_bars() as on_bytes:
            client.model_runs.download(run, output, on_bytes=on_bytes, force=force)
        return
    check_replaceable({output: run.files[0].sha256}, force=force)
    with (
        tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder,
        progress_bars() as on_bytes,
    ):
        [file] = client.model_runs.download(run, folder, on_bytes=on_bytes)
        os.replace(file, output)


@app.command()
def neighbors(
    checkpoint: CheckpointOrJob,
    image: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE", help="A file on this machine, or the key of an image of the embedding."
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="DATASET",
            help="Whose embedding is searched. Default: the newest embedding.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many neighbors.")] = 10,
    best: Best = False,
) -> None:
    """Find the images of an embedding that are nearest to an image. `dasl embed` makes the embedding."""
    from service.client.errors import ApiError

    with connect() as client:
        checkpoint = checkpoint_id(client, checkpoint, best)
        source = Path(image).read_bytes() if Path(image).is_file() else image
        if source == b"":
            raise console.fail(f"{image} is an empty file")
        try:
            answer = client.checkpoints.neighbors(checkpoint, source, dataset=dataset, k=k)
        except ApiError as error:
            if isinstance(source, str) and error.status == 422:
                raise console.fail(
                    f"{image} is neither a file on this machine nor the key of an image of the embedding"
                ) from error
            raise
    if console.print_if_json(answer):
        return
    rows = [[f"{near.similarity:.4f}", near.label, near.key] for near in answer.neighbors]
    console.print_table(["SIMILARITY", "CLASS", "IMAGE"], rows)


def finished(client: Client, run: ModelRun, what: str) -> ModelRun:
    """Wait for a run; Ctrl-C leaves it going."""
    from service.client.errors import ModelRunFailed

    if run.state == "succeeded":
        return run
    console.hint(f"{what} ({run.id}) ...")
    try:
        return client.model_runs.wait(run.id, on_poll=progress_notes(_progress))
    except ModelRunFailed as failed:
        if console.as_json():
            console.print_json(failed.task)
        raise
    except KeyboardInterrupt:
        console.note(
            f"{run.id} continues. Repeat the command to wait for it again; stop it: dasl delete {run.id}"
        )
        raise


def _progress(run: ModelRun) -> str | None:
    """Return how far a run is, in one line; None if it has ended."""
    if run.done:
        return None
    progress = run.progress
    if run.state != "running" or progress is None or progress.phase is None:
        return run.state
    of_all = f" of {progress.images_total:,}" if progress.images_total else ""
    rate = progress.images_per_second
    speed = "" if not rate or not progress.images_total else f", {number(rate)} images/s"
    seconds = progress.seconds_left
    estimate = "" if seconds is None else f", about {duration(seconds)} left"
    return f"{progress.images_read or 0:,}{of_all} {_PHASES[progress.phase]}{speed}{estimate}"
