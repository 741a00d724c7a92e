"""A real MLflow server beside trainings."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dasl_core.data.index import DatasetIndex
from dasl_core.track.delivery import Delivery
from dasl_core.track.mlflow import MLflowServer
from dasl_core.track.tracker import Point, TrackedRun
from tests.support.polling import wait_for
from tests.support.tracking import mlflow_server, train_tracked
from tests.support.training_world import Recorder, resolved

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mlflow")]
TOTAL = 9
NONE = {"tensorboard": False}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A server that all tests share, as its start takes from fifteen seconds to a minute."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as (address, process):
        yield address, process


@pytest.fixture
def server(running: tuple[str, int]) -> str:
    """The address of the server."""
    return running[0]


@pytest.fixture
def server_process(running: tuple[str, int]) -> int:
    """The process group of the server."""
    return running[1]


def call(server: str, path: str, **content: Any) -> dict[str, Any]:
    if path.startswith(("experiments", "metrics")):
        answer = httpx.get(f"{server}/api/2.0/mlflow/{path}", params=content)
    else:
        answer = httpx.post(f"{server}/api/2.0/mlflow/{path}", json=content)
    answer.raise_for_status()
    parsed: dict[str, Any] = answer.json()
    return parsed


def run_of(server: str, experiment: str) -> dict[str, Any]:
    """Return the only run of an experiment."""
    found = call(server, "experiments/get-by-name", experiment_name=experiment)["experiment"]
    [run] = call(server, "runs/search", experiment_ids=[found["experiment_id"]])["runs"]
    assert isinstance(run, dict)
    return run


def history(server: str, run: dict[str, Any], name: str) -> list[tuple[int, float]]:
    answer = call(server, "metrics/get-history", run_id=run["info"]["run_id"], metric_key=name)
    return [(int(metric["step"]), float(metric["value"])) for metric in answer["metrics"]]


@pytest.mark.usefixtures("without_plots")
def test_resumed_job_continues_the_same_run(
    server: str, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    mlflow = {"tracking_uri": server, "experiment": "birds / 2026"}
    track = NONE | {"mlflow": mlflow}
    recorder = Recorder(tmp_path / "reports", lambda step: "pause" if step >= 5 else "run")
    first = train_tracked(pictures, cache, tmp_path, track, recorder=recorder)
    assert first.outcome == "paused"
    run = run_of(server, "birds / 2026")
    assert run["info"]["status"] == "SCHEDULED"
    [(_, data)] = first.events("tracking")
    id, experiment = run["info"]["run_id"], run["info"]["experiment_id"]
    assert data["address"] == f"{server}/#/experiments/{experiment}/runs/{id}"
    assert run["info"]["run_name"] == "tiny"
    params = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert params["train.epochs"] == "3"
    assert params["track.mlflow.tracking_uri"] == server
    assert params["evaluate.retrieval"] == "[1, 2]"

    resumed: dict[str, Any] = {"resume": recorder.last_checkpoint, "resume_step": 5}
    rest = Recorder(tmp_path / "rest")
    second = train_tracked(pictures, cache, tmp_path, track, recorder=rest, attempt=2, **resumed)
    assert second.outcome == "succeeded"
    assert second.events("tracking") == first.events("tracking")
    assert "tracking_failed" not in {kind for kind, _, _ in rest.events}
    run = run_of(server, "birds / 2026")
    assert (run["info"]["run_id"], run["info"]["status"]) == (id, "FINISHED")
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert tags["dasl.job_id"] == "job_1"
    assert tags["dasl.attempt"] == "2"
    assert tags["dasl.url"] == "http://dasl/#/jobs/job_1"
    losses = recorder.curve() + rest.curve()
    assert history(server, run, "train/loss") == list(enumerate(losses, start=1))
    assert [step for step, _ in history(server, run, "backbone/knn_top1")] == [6, TOTAL]

    # A third one, after a crash, repeats steps that the run has.
    last = Recorder(tmp_path / "again")
    again = train_tracked(pictures, cache, tmp_path, track, recorder=last, attempt=3, **resumed)
    assert again.outcome == "succeeded"
    run = run_of(server, "birds / 2026")
    assert history(server, run, "train/loss") == list(enumerate(losses, start=1))


@pytest.mark.usefixtures("without_plots")
def test_cancelled_and_failed_runs_end_as_such(
    server: str, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    for name, status in (("cancelled", "KILLED"), ("failed", "FAILED")):
        track = NONE | {"mlflow": {"tracking_uri": server, "experiment": name, "run_name": "mine"}}

        def desired(step: int, name: str = name) -> Any:
            if step < 4:
                return "run"
            if name == "failed":
                raise RuntimeError("the GPU is broken")
            return "cancel"

        recorder = Recorder(tmp_path / name, desired)
        try:
            train_tracked(pictures, cache, tmp_path / name, track, recorder=recorder)
        except RuntimeError:
            assert name == "failed"
        run = run_of(server, name)
        assert run["info"]["status"] == status
        assert run["info"]["run_name"] == "mine"
        assert run["info"]["end_time"]


def test_points_arrive_once_after_an_outage(
    server: str, server_process: int, pictures: DatasetIndex, tmp_path: Path
) -> None:
    mlflow = {"tracking_uri": server, "experiment": "outage"}
    spec = resolved(pictures, track=NONE | {"mlflow": mlflow})
    assert spec.track.mlflow is not None
    recorder = Recorder(tmp_path / "reports")
    run = TrackedRun("job_2", 1, spec, None, tmp_path)
    delivery = Delivery(MLflowServer(spec.track.mlflow, run), recorder, retry_seconds=0.1)

    def put(*steps: int) -> None:
        delivery.put([Point(step, 1e9 + step, {"train/loss": step / 2}) for step in steps])

    put(*range(1, 1201))
    wait_for(lambda: any(kind == "tracking" for kind, _, _ in recorder.events))
    os.killpg(server_process, signal.SIGSTOP)
    try:
        put(1201, 1202)
        wait_for(lambda: any(kind == "tracking_failed" for kind, _, _ in recorder.events))
    finally:
        os.killpg(server_process, signal.SIGCONT)  # it answers the requests of the outage, too
    put(1203)
    delivery.end("succeeded")
    delivery.wait(time.monotonic() + 120)
    found = run_of(server, "outage")
    assert found["info"]["status"] == "FINISHED"
    assert history(server, found, "train/loss") == [(step, step / 2) for step in range(1, 1204)]
    assert [kind for kind, _, _ in recorder.events] == ["tracking", "tracking_failed"]
