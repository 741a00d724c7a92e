"""The commands `dasl experiments ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasl_core.outputs import check_replaceable
from service.cli import console
from service.cli.estimates import span, together
from service.cli.formats import number, size
from service.cli.inputs import (
    Force,
    Overrides,
    SpecFile,
    Yes,
    confirm_deletion,
    connect,
    id_argument,
    id_of_experiment,
    output_file,
    with_overrides,
)

if TYPE_CHECKING:
    from service.wire.experiments import ExperimentSummary, ExperimentView, VariantResult

ExperimentId = Annotated[
    str,
    id_argument(
        "EXPERIMENT",
        "Id of the experiment or its beginning, its name, or `last` for your newest experiment.",
    ),
]
Seeds = Annotated[
    list[int] | None,
    typer.Option(help="Seeds in place of those of the file. Can be repeated.", min=0),
]
Metric = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Show this metric, such as effective_rank, instead."),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print all metrics as CSV.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print all metrics as Markdown.")]

app = typer.Typer(
    name="experiments",
    no_args_is_help=True,
    help="Train variants of a spec with several seeds, and compare them.",
)


@app.command()
def submit(
    spec: SpecFile,
    overrides: Overrides,
    seed: Seeds = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Wait for all jobs, and print the result.")
    ] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="Submitting again with the same key returns the same experiment."),
    ] = None,
) -> None:
    """Submit an experiment: a job for each variant and seed. --set changes the base spec."""
    body = _read(spec, overrides, seed)
    with connect() as client:
        experiment = client.experiments.submit(body, idempotency_key=idempotency_key)
    console.note_warnings(experiment.warnings)
    for note in experiment.notes:
        console.note(note)
    if experiment.estimate is not None and not console.as_json():
        console.note(together(experiment.estimate))
    submitted = f"Submitted {len(experiment.jobs)} jobs of {experiment.name} as {experiment.id}."
    if not watch:
        remedy = f"See: dasl experiments show {experiment.id}"
        console.print_result(experiment, f"{submitted} {remedy}")
        return
    console.note(submitted)
    _watch(experiment.id)


@app.command()
def validate(spec: SpecFile, overrides: Overrides, seed: Seeds = None) -> None:
    """Resolve the specs of all variants, and estimate time and disk of their jobs. Nothing is submitted."""
    with connect() as client:
        answer = client.experiments.validate(_read(spec, overrides, seed))
    console.note_warnings(answer.warnings)
    if console.print_if_json(answer):
        return
    counts = ("train_images", "held_out_images", "total_steps")
    rows = [
        [
            variant.name,
            *(f"{variant.estimate[count]:,}" for count in counts),
            span(variant.estimate["seconds"]),
            size(variant.estimate["checkpoints_bytes"]),
        ]
        for variant in answer.variants
    ]
    headers = ["TRAINING IMAGES", "HELD OUT", "STEPS", "TIME OF A JOB", "CHECKPOINTS"]
    console.print_table(["VARIANT", *headers], rows)
    console.print_line("\n" + "\n".join([together(answer.estimate), *answer.notes]))


def _read(path: Path, overrides: list[str], seeds: list[int] | None) -> dict[str, Any]:
    """Read the file of an experiment, and apply the overrides to its base spec, and the seeds, if there are any.

    Raises:
        InvalidSpec: the file cannot be read, or its `spec` is not a mapping.
    """
    from service.client.errors import InvalidSpec
    from service.client.specs import spec_body

    content = spec_body(path)
    base = content.get("spec")
    if not isinstance(base, dict):
        raise InvalidSpec(
            f"{path}: spec: expected a mapping, what all jobs have in common. To submit a single job: dasl submit"
        )
    changes: dict[str, Any] = {"spec": with_overrides(base, overrides)}
    return content | changes | ({"seeds": seeds} if seeds else {})


def _watch(experiment_id: str) -> None:
    states: dict[str, int] = {}

    def report(experiment: ExperimentView) -> None:
        nonlocal states
        if experiment.statuses != states:
            states = experiment.statuses
            console.note(f"{experiment.name}: {_counts(experiment)}")

    with connect(patience=0.0) as client:
        try:
            experiment = client.experiments.wait(experiment_id, on_poll=report)
        except KeyboardInterrupt as interrupt:
            console.note(
                f"\nThe jobs were not stopped. See: dasl experiments show {experiment_id}   "
                f"Cancel them: dasl experiments cancel {experiment_id}"
            )
            raise typer.Exit(130) from interrupt
    if console.as_json():
        console.print_json(experiment)
    else:
        _print_results(experiment)
    if set(experiment.statuses) != {"succeeded"}:
        raise console.fail(f"Not all jobs have succeeded: {_counts(experiment)}")


@app.command("list")
def list_experiments() -> None:
    """List experiments, newest first."""
    shown: console.Columns[ExperimentSummary] = {
        **console.columns("id", "name"),
        "VARIANTS": lambda record: len(record.variants),
        "SEEDS": lambda record: len(record.seeds),
        "JOBS": _counts,
        **console.columns("created_at"),
    }
    with connect() as client:
        console.print_records(client.experiments.list(), shown)


@app.command()
def show(
    experiment: ExperimentId,
    metric: Metric = None,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Show the jobs of an experiment, its variants over the seeds, and what the differences allow to say."""
    if as_csv + as_markdown + console.as_json() > 1:
        raise typer.BadParameter("choose one of --csv, --markdown and --json")
    with connect() as client:
        record = client.experiments.get(experiment)
        if metric is not None:
            record.results = client.experiments.results(record.id, metric)
            if not any(each.values for table in record.results.metrics for each in table.variants):
                measured = client.experiments.results(record.id).metrics
                if names := ", ".join(table.metric for table in measured):
                    raise console.fail(
                        f"--metric {metric}: no job has measured it. There are: {names}"
                    )
        if as_csv or as_markdown:
            text = client.experiments.table(record.id, "csv" if as_csv else "markdown", metric)
            console.print_line(text.rstrip("\n"))
            return
    facts = [("id", record.id), ("name", record.name), ("created", record.created_at)]
    console.print_record(record, [*facts, ("jobs", _counts(record))])
    if console.as_json():
        return
    console.print_line()
    jobs = {(job.variant, job.seed): f"{job.status} {job.id or ''}".strip() for job in record.jobs}
    rows = []
    for variant in record.variants:
        keys = ((variant.name, seed) for seed in record.seeds)
        rows.append([variant.name, *(jobs[key] for key in keys if key in jobs)])
    console.print_table(["VARIANT", *(f"SEED {seed}" for seed in record.seeds)], rows)
    _print_results(record)


@app.command()
def plot(
    experiment: ExperimentId,
    metric: Metric = None,
    output: Annotated[
        Path | None, output_file("FILE", "PNG, SVG or PDF to write. Default: ID.png.")
    ] = None,
    force: Force = False,
) -> None:
    """Draw a metric by step, as mean and range over the seeds, and the paired differences. Needs the core extra."""
    if output is not None and output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"--output {output}: expected the ending .png, .svg or .pdf")
    with console.core_extra("experiments plot"):
        from service.cli.experiment_plot import draw
    with connect() as client:
        experiment = id_of_experiment(client, experiment)
        results = client.experiments.results(experiment, metric)
        name = metric or results.metric
        if name is None:
            raise console.fail(
                "No job has succeeded yet. Name a metric to draw, such as --metric loss"
            )
        curves = client.experiments.curves(experiment, name)
        record = client.experiments.get(experiment)
    file = output or Path(f"{experiment}.png")
    check_replaceable({file: None}, force=force)
    table = next((table for table in results.metrics if table.metric == name), None)
    draw(record, curves, table, file)
    console.print_result({"file": str(file), "metric": name}, f"Wrote {file}.")


@app.command()
def cancel(experiment: ExperimentId) -> None:
    """Cancel all jobs of an experiment that have not ended."""
    with connect() as client:
        record = client.experiments.cancel(id_of_experiment(client, experiment))
    console.print_result(record, f"{record.name}: {_counts(record)}.")


@app.command()
def rm(
    experiment: ExperimentId,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="Delete its jobs with all their files, too.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete an experiment. Its jobs stay, unless --jobs is set and all of them have ended."""
    with connect() as client:
        record = client.experiments.get(experiment)
        what = f"experiment {record.name} ({record.id})"
        what += f" and its {sum(record.statuses.values())} jobs with all files" if jobs else ""
        confirm_deletion(what, yes)
        client.experiments.delete(record.id, jobs=jobs)
    console.print_result({"deleted": record.id}, f"Deleted {what}.")


def _counts(experiment: ExperimentSummary) -> str:
    """Return the number of jobs by status: `2 running, 10 queued`."""
    counts = sorted(experiment.statuses.items())
    return ", ".join(f"{count} {status}" for status, count in counts) or "none"


def _print_results(experiment: ExperimentView) -> None:
    results = experiment.results
    for table in results.metrics:
        console.print_line()
        headers = ["VARIANT", table.metric.upper(), "STD", "MIN", "MAX", "N"]
        headers += [f"MINUS {results.baseline}".upper(), "T INTERVAL", "BOOTSTRAP INTERVAL"]
        console.print_table([*headers, "PAIRS", "VERDICT"], map(_row, table.variants))
    for lines in (results.sentences, results.notes):
        if lines:
            console.print_line("\n" + "\n".join(lines))


def _row(result: VariantResult) -> list[object]:
    row: list[object] = [result.variant]
    summary, difference = result.summary, result.difference
    if summary is None:
        row += [None, None, None, None, 0]
    else:
        row += [*map(number, (summary.mean, summary.std, summary.min, summary.max)), summary.n]
    if difference is None:
        return [*row, None, None, None, None, None]
    intervals = (difference.t_interval, difference.bootstrap_interval)
    bounds = [ends and f"{ends[0]:+.3g} to {ends[1]:+.3g}" for ends in intervals]
    verdict = result.verdict and result.verdict.replace("_", " ")
    return [*row, f"{difference.mean:+.3g}", *bounds, difference.n, verdict]
