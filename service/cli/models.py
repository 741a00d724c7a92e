"""`dasl evaluate`, `dasl embed` and `dasl neighbors`: a finished model at work."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasl_core.vocabulary import EmbeddingFormat, EmbeddingType, FeatureKind
from service.cli.files import checkpoint_id, progress_bars
from service.cli.inputs import connect, existing
from service.cli.output import (
    AsJson,
    core_extra,
    duration,
    fail,
    note,
    number,
    plain,
    print_json,
    print_line,
    print_table,
    size,
)

if TYPE_CHECKING:
    from service.client import Client
    from service.client.models import ModelRun

_SECONDS_BETWEEN_NOTES = 5.0
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
Best = Annotated[
    bool, typer.Option("--best", help="Of a job, its best checkpoint by checkpoints.best_by.")
]
DatasetOption = Annotated[
    str,
    typer.Option(
        "--dataset", metavar="DATASET", help="Id or name of the data set; NAME@NUMBER is a version."
    ),
]

app = typer.Typer()


@app.command()
def evaluate(
    checkpoint: CheckpointOrJob,
    dataset: DatasetOption,
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            default_factory=list,
            show_default=False,
            help="A field of `evaluate` of a spec, such as linear=true or holdout=null, which evaluates on all images. "
            "Can be repeated.",
        ),
    ],
    best: Best = False,
    wait: Annotated[bool, typer.Option(help="Wait for the result.")] = True,
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished backbone on the images of a data set, as training does on held-out ones."""
    from dasl_core.spec import apply_overrides

    try:
        settings = apply_overrides({}, overrides)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with connect() as client:
        chosen = checkpoint_id(client, checkpoint, best)
        run = client.checkpoints.evaluate(chosen, dataset, settings=settings)
        run = _finished(client, run, wait, as_json, f"Evaluating {chosen} on {dataset}")
    if as_json:
        print_json(plain(run))
    elif run.result is None:
        print_line(f"{run.id}: {run.state}")
    else:
        metrics: dict[str, dict[str, float]] = run.result.get("metrics") or {}
        names = {name: None for values in metrics.values() for name in values}
        rows = [[name, *(number(each.get(name)) for each in metrics.values())] for name in names]
        print_table(["METRIC", *(subject.upper() for subject in metrics)], rows)
        images = run.result.get("images")
        if images is not None and run.settings.get("holdout", {}) is not None:
            note(
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
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="DATASET",
            help="Id or name of the data set; NAME@NUMBER is a version.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            callback=existing,
            help="Images on this machine, or at a URI, in place of a data set: no service is needed.",
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
    as_json: AsJson = False,
) -> None:
    """Compute the features of all images of a data set with a finished backbone, to a file."""
    if (dataset is None) == (data is None):
        raise typer.BadParameter("pass either --dataset or --data")
    format = _format(output)
    if data is not None:
        if output is None:
            raise typer.BadParameter("--data needs a file to write: -o FILE")
        with core_extra("embed"):
            from dasl_core.standalone.embed import embed as run_here
        result = run_here(
            Path(checkpoint),
            data,
            output,
            format,
            features=features,
            normalize=normalize,
            dtype=dtype,
        )
        if isinstance(result, str):
            raise fail(result)
        _print_embedding(result, output, as_json)
        return
    assert dataset is not None, "checked above"
    with connect() as client:
        chosen = checkpoint_id(client, checkpoint, best)
        run = client.checkpoints.embed(
            chosen, dataset, features=features, format=format, normalize=normalize, dtype=dtype
        )
        run = _finished(client, run, wait, as_json, f"Embedding the images of {dataset}")
        if output is not None and run.state == "succeeded":
            _download(client, run, output)
    if as_json:
        print_json({**plain(run), "output": None if output is None else str(output)})
    elif run.result is None:
        print_line(f"{run.id}: {run.state}")
    else:
        _print_embedding(run.result, output, as_json)
        if output is None:
            print_line(f"{run.id}: {size(run.size)}. Repeat the command with -o FILE for the file.")


def _format(output: Path | None) -> EmbeddingFormat:
    suffix = "" if output is None else output.suffix
    if suffix in ("", ".parquet"):
        return "parquet"
    if suffix == ".safetensors":
        return "safetensors"
    raise typer.BadParameter(f"--output: {output} must end in .parquet or .safetensors")


def _print_embedding(result: dict[str, Any], output: Path | None, as_json: bool) -> None:
    if as_json:
        print_json({**result, "output": None if output is None else str(output)})
        return
    where = "" if output is None else f" in {output}"
    shape = " x ".join(str(each) for each in result.get("shape", []))
    unreadable = result.get("unreadable")
    missing = f"; {unreadable:,} cannot be read" if unreadable else ""
    rate = number(result.get("images_per_second"))
    print_line(f"{result.get('images', 0):,} images x {shape}{where}, {rate} images/s{missing}")


def _download(client: Client, run: ModelRun, output: Path) -> None:
    """Write the file of an embedding, or its files into a folder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if len(run.files) != 1:
        with progress_bars() as on_bytes:
            client.model_runs.download(run, output, on_bytes=on_bytes)
        return
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
    as_json: AsJson = False,
) -> None:
    """Find the images of an embedding that are nearest to an image. `dasl embed` makes the embedding."""
    from service.client.errors import ApiError

    with connect() as client:
        chosen = checkpoint_id(client, checkpoint, best)
        source: bytes | str = image
        if Path(image).is_file():
            source = Path(image).read_bytes()
        try:
            found = client.checkpoints.neighbors(chosen, source, dataset=dataset, k=k)
        except ApiError as error:
            if isinstance(source, str) and error.status == 422:
                raise fail(
                    f"{image} is neither a file on this machine nor the key of an image of the embedding"
                ) from error
            raise
    if as_json:
        print_json(plain(found))
        return
    rows = [[f"{each.similarity:.4f}", each.label, each.key] for each in found.neighbors]
    print_table(["SIMILARITY", "CLASS", "IMAGE"], rows)


def _finished(client: Client, run: ModelRun, wait: bool, as_json: bool, what: str) -> ModelRun:
    """Wait for a run, unless that is not wanted; Ctrl-C leaves it going."""
    from service.client.errors import ModelRunFailed

    if not wait or run.state == "succeeded":
        return run
    if not as_json:
        note(f"{what} ({run.id}) ...")
    with followed(run.id):
        try:
            on_poll = (lambda _: None) if as_json else ProgressNotes()
            return client.model_runs.wait(run.id, on_poll=on_poll)
        except ModelRunFailed as failed:
            if as_json:
                print_json(plain(failed.run))
            raise


@contextmanager
def followed(run_id: str) -> Iterator[None]:
    """Say at Ctrl-C that a run continues, and how to follow or stop it."""
    try:
        yield
    except KeyboardInterrupt:
        note(
            f"{run_id} continues. Repeat the command to wait for it again; stop it: dasl delete {run_id}"
        )
        raise


class ProgressNotes:
    """Notes the progress of a run every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._shown_at = clock, clock()

    def __call__(self, run: ModelRun) -> None:
        """Note the progress, if the last note is some seconds ago."""
        if self._clock() - self._shown_at < _SECONDS_BETWEEN_NOTES or run.done:
            return
        self._shown_at = self._clock()
        note(f"  {describe(run)}")


def describe(run: ModelRun) -> str:
    """Return how far a run is, in one line."""
    progress = run.progress
    if run.state != "running" or progress is None or progress.phase is None:
        return run.state
    of_all = f" of {progress.images_total:,}" if progress.images_total else ""
    rate = progress.images_per_second
    speed = "" if not rate or not progress.images_total else f", {number(rate)} images/s"
    left = progress.seconds_left
    estimate = "" if left is None else f", about {duration(left)} left"
    return f"{progress.images_read or 0:,}{of_all} {_PHASES[progress.phase]}{speed}{estimate}"
