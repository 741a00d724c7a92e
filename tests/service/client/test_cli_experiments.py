"""`dasl experiments` and `dasl compare`, against the real API."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dasl_core.spec import load_spec
from service.cli.app import app
from service.client import Client, InvalidSpec, WaitTimeout
from service.wire.experiments import ExperimentSummary, ExperimentView
from tests.support.api_server import Service
from tests.support.command_line import run

EXAMPLE = Path(__file__).parents[3] / "examples" / "is-dar-worth-it.yaml"
SEEDS = (0, 1, 2)


@pytest.fixture
def client(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """An SDK client, and the data set `fonts` with 640 images; the command line uses the same server."""
    monkeypatch.setenv("DASL_URL", service.url)
    monkeypatch.setenv("DASL_TOKEN", service.token)
    with Client() as client:
        if not list(client.datasets.list(name="fonts")):
            service.ingest(client.datasets.add(tmp_path, "fonts"))
        yield client


def submit(*arguments: object) -> ExperimentView:
    document = run("experiments", "submit", EXAMPLE, *arguments, "--json").stdout
    return ExperimentView.model_validate_json(document)


def train(service: Service, job_id: str, value: float) -> None:
    """Run a job as a worker does, with R@1 after each half."""
    worker = service.start_attempt(job_id)
    worker.start()
    worker.metrics([{"step": 1, "time": 1.0, "values": {"loss": 2.0}}])
    for step in (5, 10):
        metrics = {"recall_at_1": value * step / 10, "effective_rank": 20.0}
        worker.evaluation(step=step, epoch=step, subject="backbone", metrics=metrics)
    worker.finish("succeeded")


def train_all(service: Service, experiment: ExperimentView) -> None:
    """Run all jobs; DAR is 5 points better with each seed, and SEC varies around the baseline."""
    gains = {"baseline": [0, 0, 0], "dar": [5, 6, 5], "sec": [1, -2, 1], "dar+sec": [-9, -8, -9]}
    for job in experiment.jobs:
        assert job.id is not None
        points = 40 + job.seed + gains[job.variant][job.seed]
        train(service, job.id, points / 100)


def test_example_is_submitted_with_changes_of_its_base_spec(client: Client) -> None:
    experiment = submit("--set", "train.epochs=3", "--set", "backbone.name=resnet18")
    assert [each.name for each in experiment.variants] == ["baseline", "dar", "sec", "dar+sec"]
    assert (len(experiment.jobs), experiment.seeds) == (12, [*SEEDS])
    job = client.jobs.get(experiment.jobs[-1].id or "")
    assert job.experiment is not None
    assert (job.experiment.variant, job.experiment.seed) == ("dar+sec", 2)
    resolved = job.resolved or {}
    assert (resolved["train"]["epochs"], resolved["backbone"]["name"]) == (3, "resnet18")
    assert (resolved["train"]["seed"], resolved["sec"]["share"]) == (2, 0.1)
    listed = run("jobs", "--experiment", experiment.id, "--json").stdout
    assert {each["id"] for each in json.loads(listed)} == {each.id for each in experiment.jobs}
    assert experiment.id in run("experiments", "list").stdout
    assert f"{experiment.id}, variant dar+sec, seed 2" in run("show", job.id).stdout

    assert "add --yes" in run("experiments", "rm", experiment.id, code=2).stderr
    assert "12 cancelled" in run("experiments", "cancel", experiment.id).stdout
    kept = run("experiments", "rm", experiment.id, "--yes").stdout
    assert kept == f"Deleted experiment is-dar-worth-it ({experiment.id}).\n"
    assert client.jobs.get(job.id).experiment is None


def test_validation_shows_what_all_jobs_take_and_submits_none(
    service: Service, client: Client
) -> None:
    known = {each.id for each in client.experiments.list()}
    few, many = (
        run("experiments", "validate", EXAMPLE, *seeds).stdout.splitlines()
        for seeds in (["--seed", 7], [])
    )
    assert few[0].split()[:3] == ["VARIANT", "TRAINING", "IMAGES"]
    assert [line.split()[0] for line in few[1:5]] == ["baseline", "dar", "sec", "dar+sec"]
    assert few[:5] == many[:5]  # of a job
    assert few[6].startswith("4 jobs; time not known before jobs like them have run; about ")
    assert few[7].startswith("seeds: 1 is too few for a verdict.")
    assert many[6].startswith("12 jobs; ")
    assert many[7].startswith("With 3 seeds, 80% of experiments find a true difference of 3.1 ")

    document = run("experiments", "validate", EXAMPLE, "--set", "train.epochs=3", "--json").stdout
    answer = json.loads(document)
    resolved = {each["name"]: each["resolved"] for each in answer["variants"]}
    assert {each["train"]["epochs"] for each in resolved.values()} == {3}
    assert (resolved["baseline"]["dar"], resolved["dar"]["dar"]["share"]) == (None, 0.1)
    assert answer["estimate"]["jobs"] == 12
    assert {each.id for each in client.experiments.list()} == known

    result = run("experiments", "submit", EXAMPLE)
    for line in many[6:8]:
        assert " ".join(line.split()) in " ".join(result.stderr.split())
    client.experiments.cancel(client.experiments.get("last").id)


def test_watch_prints_the_sentences_once_all_jobs_have_ended(
    service: Service, client: Client
) -> None:
    known = {each.id for each in client.experiments.list()}
    results: list[Result] = []
    watching = Thread(
        target=lambda: results.append(
            CliRunner().invoke(app, ["experiments", "submit", str(EXAMPLE), "--watch"])
        )
    )
    watching.start()
    new: list[ExperimentSummary] = []
    while watching.is_alive() and not new:
        new = [each for each in client.experiments.list() if each.id not in known]
    train_all(service, client.experiments.get(new[0].id))
    watching.join(60)
    [result] = results
    assert result.exit_code == 0, (result.stdout, result.stderr)
    assert "is-dar-worth-it: 12 succeeded" in result.stderr
    assert (
        "dar: better than baseline in recall_at_1 (+5.33 points, 95% interval +3.90 to +6.77, 3 seeds)."
    ) in result.stdout
    assert "sec: no difference from baseline in recall_at_1 beyond the spread of 3 seeds" in (
        result.stdout
    )
    assert "The difference is at most one of the held-out images." in result.stdout  # of 320
    assert "dar+sec: worse than baseline" in result.stdout
    assert "320 held-out images: one image is 0.31 points of recall_at_1." in result.stdout
    assert "called better or worse in up to 15% of such experiments" in result.stdout


def test_results_are_shown_in_all_forms(service: Service, client: Client, tmp_path: Path) -> None:
    experiment = submit()
    train_all(service, experiment)
    text = run("experiments", "show", experiment.id).stdout
    assert "SEED 2" in text
    assert str(experiment.jobs[0].id) in text
    assert "+0.0533" in text
    rank = run("experiments", "show", experiment.id, "--metric", "effective_rank").stdout
    assert "EFFECTIVE_RANK" in rank
    assert "dar: no difference from baseline in effective_rank" in rank
    assert "dar: better" not in rank
    assert "recall_at_1 decides." in rank
    rows_of_variants = [line.split() for line in text.splitlines() if line.startswith("dar ")]
    assert rows_of_variants[1][-2:] == ["3", "better"]
    for form in ((), ("--csv",), ("--json",)):
        unknown = run("experiments", "show", experiment.id, "--metric", "recal", *form, code=1)
        expected = "--metric recal: no job has measured it. There are: recall_at_1, effective_rank"
        assert expected in unknown.stderr
    rows = list(
        csv.DictReader(run("experiments", "show", experiment.id, "--csv").stdout.splitlines())
    )
    assert [(row["metric"], row["variant"]) for row in rows[:2]] == [
        ("recall_at_1", "baseline"),
        ("recall_at_1", "dar"),
    ]
    assert float(rows[1]["difference_mean"]) == pytest.approx(0.16 / 3)
    assert "| dar | 3 |" in run("experiments", "show", experiment.id, "--markdown").stdout
    document = json.loads(run("experiments", "show", experiment.id, "--json").stdout)
    assert document["results"]["metric"] == "recall_at_1"
    assert run("experiments", "show", experiment.id, "--csv", "--json", code=2)

    for metric, ending in ((None, "png"), ("loss", "svg")):
        file = tmp_path / f"plot.{ending}"
        option = () if metric is None else ("--metric", metric)
        run("experiments", "plot", experiment.id, "-o", file, *option)
        assert file.stat().st_size > 5000
    run("experiments", "plot", experiment.id, "-o", tmp_path / "plot.doc", code=2)
    [curve, *_] = client.experiments.curves(experiment.id, "recall_at_1")
    assert (curve.step, curve.n) == ([5, 10], [3, 3])

    deleted = run("experiments", "rm", experiment.id, "--jobs", "-y").stdout
    assert "and its 12 jobs with all files" in deleted
    assert not list(client.jobs.list(experiment=experiment.id))


def test_names_beginnings_and_last_denote_an_experiment(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    body = load_spec(EXAMPLE) | {"name": "by its name", "seeds": [1]}
    experiment = client.experiments.submit(body)
    for reference in ("by its name", experiment.id[:29], "last"):
        assert experiment.id in run("experiments", "show", reference).stdout
    listed = json.loads(run("jobs", "--experiment", "by its name", "--json").stdout)
    assert {each["id"] for each in listed} == {each.id for each in experiment.jobs}
    run("experiments", "plot", "last", "--metric", "loss")
    assert (tmp_path / f"{experiment.id}.png").exists()
    assert "4 cancelled" in run("experiments", "cancel", "by its name").stdout
    deleted = run("experiments", "rm", "by its name", "--yes", "--json").stdout
    assert json.loads(deleted) == {"deleted": experiment.id}


@pytest.mark.parametrize("command", ["validate", "submit"])
def test_experiment_among_the_specs_of_jobs_is_recognized(command: str, tmp_path: Path) -> None:
    result = run(command, EXAMPLE, code=1)
    assert (
        f"This is an experiment. Validate it with: dasl experiments validate {EXAMPLE}   "
        f"Submit it with: dasl experiments submit {EXAMPLE}"
    ) in result.stderr
    file = tmp_path / "grid.yaml"
    file.write_text(json.dumps({"spec": {}, "seeds": [0], "grid": {"dar.weight": [1]}}))
    assert "This is an experiment" in run(command, file, code=1).stderr


def test_problems_name_the_variant(client: Client, tmp_path: Path) -> None:
    body = load_spec(EXAMPLE)
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(body | {"variants": {"baseline": {}, "b": {"dar": {"weight": -1}}}}))
    assert "variants.b.dar.weight" in run("experiments", "submit", file, code=1).stderr
    file.write_text(json.dumps(body["spec"]))
    assert "dasl submit" in run("experiments", "submit", file, code=1).stderr
    assert run("experiments", "submit", EXAMPLE, "--set", "epochs", code=2)
    run("experiments", "show", "exp_none", code=1)
    with pytest.raises(InvalidSpec):
        client.experiments.submit(tmp_path / "missing.yaml")
    experiment = client.experiments.submit(body | {"seeds": [1]}, idempotency_key="once")
    assert (
        client.experiments.submit(body | {"seeds": [1]}, idempotency_key="once").id == experiment.id
    )
    with pytest.raises(WaitTimeout):
        client.experiments.wait(experiment.id, timeout=0.01, poll=0.01)
    client.experiments.cancel(experiment.id)


def jobs_to_compare(service: Service, client: Client, *values: float) -> list[str]:
    ids = []
    for number, value in enumerate(values):
        spec: dict[str, Any] = {
            "name": f"job {number}",
            "dataset": "fonts",
            "method": {"name": "simclr", "temperature": 0.1 + number / 10},
            "dar": {"weight": 1.0} if number else None,
        }
        job = client.jobs.submit(spec)
        train(service, job.id, value)
        ids.append(job.id)
    return ids


def test_compare_takes_name_and_id_of_a_data_set_for_the_same(
    service: Service, client: Client
) -> None:
    (first,) = jobs_to_compare(service, client, 0.25)
    clone = client.jobs.clone(first, {"train": {"seed": 1}}, checkpoint=None)
    lines = run("compare", first, clone.id).stdout.splitlines()
    assert [line.split()[0] for line in lines if "seed" in line or "dataset" in line] == [
        "train.seed"
    ]


def test_compare_shows_metrics_and_settings_that_differ(service: Service, client: Client) -> None:
    first, second = jobs_to_compare(service, client, 0.25, 0.75)
    result = run("compare", first, second)
    lines = {line.split("  ")[0]: line.split() for line in result.stdout.splitlines()}
    assert lines["recall_at_1"][1:] == ["0.25", "0.75"]
    assert lines["effective_rank"][1:] == ["20", "20"]
    assert lines["method.temperature"][1:] == ["0.1", "0.2"]
    assert lines["dar.weight"][1:] == ["-", "1.0"]
    assert lines["status"][1:] == ["succeeded", "succeeded"]
    assert "train.epochs" not in lines
    assert "name" not in lines
    assert "may be chance" not in result.stderr
    assert "Another seed changes these metrics" in result.stderr

    rows = list(csv.reader(run("compare", first, second, "--csv").stdout.splitlines()))
    assert rows[0] == ["", "job 0", "job 1"]
    assert ["recall_at_1", "0.25", "0.75"] in rows
    assert "| recall_at_1 | 0.25 | 0.75 |" in run("compare", first, second, "--markdown").stdout
    documents = json.loads(run("compare", first, second, "--json").stdout)
    assert documents[1]["settings"]["dar.weight"] == 1.0
    assert documents[1]["held_out_images"] == 64
    assert documents[1]["metrics"] == {"recall_at_1": 0.75, "effective_rank": 20.0}


def test_compare_says_which_differences_may_be_chance(service: Service, client: Client) -> None:
    # Two shares of 64 images near one half: their difference has a standard error of 8.8 points.
    one, other, far = jobs_to_compare(service, client, 0.421875, 0.578125, 0.984375)
    remark = "recall_at_1: differences below 17.7 points may be chance (64 held-out images)."
    assert remark in run("compare", one, other).stderr
    assert remark in run("compare", far, one, other).stderr
    assert "may be chance" not in run("compare", one, far).stderr


def test_compare_knows_the_noise_of_the_best_accuracies(service: Service, client: Client) -> None:
    perfect = jobs_to_compare(service, client, 1.0, 1.0)
    assert "differences below 1.56 points may be chance" in run("compare", *perfect).stderr


def test_compare_needs_two_jobs(service: Service, client: Client) -> None:
    [job] = jobs_to_compare(service, client, 0.5)
    assert "two different jobs" in run("compare", job, "last", code=2).stderr
    run("compare", code=2)
    run("compare", job, "job_none", code=1)
