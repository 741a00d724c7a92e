"""TensorBoard, MLflow and W&B beside real trainings."""

import json
import socket
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from dasl_core.data.index import DatasetIndex
from dasl_core.track import reporter as tracking
from dasl_core.track.delivery import Delivery
from dasl_core.track.mlflow import MLflowServer
from dasl_core.track.tensorboard import TensorBoard
from dasl_core.track.tracker import Point, TrackedRun
from tests.dasl_core.test_run_dir import full_disk
from tests.support.polling import until, wait_for
from tests.support.processes import free_port
from tests.support.scripted_server import Answer, Request, answer_json, scripted
from tests.support.tracking import (
    process,
    scalars,
    steps_of,
    train_tracked,
    wandb_history,
    wandb_records,
)
from tests.support.training_world import Recorder, recorded, resolved, skip_plots

TOTAL = 9  # steps of the tiny spec on `pictures`
NONE = {"tensorboard": False}


@pytest.fixture(scope="module")
def untracked(
    pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Recorder:
    """The reports of a training without trackers."""
    with pytest.MonkeyPatch.context() as patch:
        skip_plots(patch)
        folder = tmp_path_factory.mktemp("untracked")
        return recorded(resolved(pictures, track=NONE), pictures, cache, folder)


def train_twice(
    index: DatasetIndex, cache: Path, folder: Path, step: int
) -> tuple[Recorder, float]:
    """Train, and again from the checkpoint of a step, as after a crash; return the reports and the time between."""
    recorder = Recorder(folder / "reports")
    train_tracked(index, cache, folder, {}, recorder=recorder)
    resume = {step: path for step, path, _ in recorder.checkpoints}[step]
    between = time.time()
    again: dict[str, Any] = {"attempt": 2, "resume": resume, "resume_step": step}
    train_tracked(index, cache, folder, {}, recorder=recorder, **again)
    return recorder, between


def write_event_files(recorder: Recorder, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in recorder.artifacts.items():
        if name.startswith("events.out.tfevents."):
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.usefixtures("without_plots")
def test_event_file_has_all_metrics(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, untracked: Recorder
) -> None:
    training = train_tracked(pictures, cache, tmp_path, {})
    recorder = training.recorder
    [(message, data)] = training.events("tracking")
    assert message == f"TensorBoard: {data['address']}"
    assert recorder.artifacts.keys() == {data["address"]}
    read = scalars(write_event_files(recorder, tmp_path / "board"))
    losses = read.Scalars("train/loss")
    assert [event.step for event in losses] == list(range(1, TOTAL + 1))
    assert [event.value for event in losses] == pytest.approx(recorder.curve(), rel=1e-6)
    assert recorder.curve() == untracked.curve()
    for step, _, subject, metrics in recorder.evaluations:
        for name, value in metrics.items():
            [event] = [e for e in read.Scalars(f"{subject}/{name}") if e.step == step]
            assert event.value == pytest.approx(value, rel=1e-6)


@pytest.mark.usefixtures("without_plots")
def test_event_file_is_published_with_each_checkpoint(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    files: list[bytes] = []

    class Copies(Recorder):
        def artifact(self, file: Path) -> None:
            files.append(file.read_bytes())

        def checkpoint(self, folder: Path, step: int, *others: object) -> None:
            super().checkpoint(folder, step, *others)  # type: ignore[arg-type]
            if step < TOTAL:  # the file of the checkpoint before has been published meanwhile
                wait_for(lambda: len(files) >= step // 3 - 1)

    train_tracked(pictures, cache, tmp_path, {}, recorder=Copies(tmp_path / "reports"))
    assert len(files) >= 2
    assert all(later.startswith(earlier) for earlier, later in pairwise(files))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "events.out.tfevents.1").write_bytes(files[0])
    assert steps_of(tmp_path / "first")[:3] == [1, 2, 3]


@pytest.mark.usefixtures("without_plots")
def test_tensorboard_shows_no_step_of_a_resumed_run_twice(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    recorder, before = train_twice(pictures, cache, tmp_path, 3)
    folder = write_event_files(recorder, tmp_path / "board")
    assert len(list(folder.iterdir())) == 2
    for tag in ("train/loss", "train/lr", "train/gradient_norm"):
        assert steps_of(folder, tag) == list(range(1, TOTAL + 1))
    times = {event.step: event.wall_time for event in scalars(folder).Scalars("train/loss")}
    assert [step for step, at in times.items() if at < before] == [1, 2, 3]
    # An attempt from scratch replaces all.
    recorder = Recorder(tmp_path / "reports of the third")
    train_tracked(pictures, cache, tmp_path, {}, recorder=recorder, attempt=3)
    assert steps_of(write_event_files(recorder, folder)) == list(range(1, TOTAL + 1))
    assert steps_of(folder, "untrained/knn_top1") == [0]


@pytest.mark.slow
@pytest.mark.usefixtures("without_plots")
def test_tensorboard_process_serves_the_scalars_of_both_attempts(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    recorder, _ = train_twice(pictures, cache, tmp_path, 6)
    write_event_files(recorder, tmp_path / "boards")
    port = str(free_port())
    command = ["tensorboard.main", "--logdir", str(tmp_path), "--host", "127.0.0.1", "--port", port]

    def served() -> list[list[float]] | None:
        query = {"run": "boards", "tag": "train/loss"}
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/data/plugin/scalars/scalars", params=query)
        except httpx.TransportError:
            return None
        rows: list[list[float]] = answer.json() if answer.status_code == 200 else []
        return rows if len(rows) >= TOTAL else None

    with process(*command):
        rows = until(served, "the scalars of TensorBoard", 120)
    assert [step for _, step, _ in rows] == list(range(1, TOTAL + 1))
    losses = recorder.curve()[:6] + recorder.curve()[-3:]
    assert [value for _, _, value in rows] == pytest.approx(losses, rel=1e-6)


def test_full_disk_leaves_a_readable_file(pictures: DatasetIndex, tmp_path: Path) -> None:
    run_ = TrackedRun("job_1", 1, resolved(pictures), None, tmp_path)
    recorder = Recorder(tmp_path / "reports")
    points = [Point(step, 0.0, {"train/loss": 1.0, "train/lr": 0.1}) for step in range(1, 101)]
    with full_disk(300):
        delivery = Delivery(TensorBoard(run_), recorder, retry_seconds=0.01)
        delivery.put(points[:2])
        delivery.put(points[2:])
        wait_for(lambda: any(kind == "tracking_failed" for kind, _, _ in recorder.events))
    delivery.end("succeeded")
    delivery.wait(time.monotonic() + 60)
    assert steps_of(tmp_path) == list(range(1, 101)), "each once, when there is room again"
    kinds = [kind for kind, _, _ in recorder.events]
    assert kinds == ["tracking", "tracking_failed"]
    assert "File too large" in recorder.events[1][1]


@contextmanager
def refusing() -> Iterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


@contextmanager
def hanging() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:  # connects, and answers nothing
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def answer_as_mlflow(request: Request) -> Answer:
    path = request.path.partition("?")[0].removeprefix("/api/2.0/mlflow/")
    return answer_json(
        {
            "experiments/get-by-name": {"experiment": {"experiment_id": "1"}},
            "runs/create": {"run": {"info": {"run_id": "abc"}, "data": {}}},
        }.get(path, {})
    )


@contextmanager
def dying() -> Iterator[str]:
    count = 0

    def answer(request: Request) -> Answer:
        nonlocal count
        count += 1
        if count > 3:  # within the parameters
            return Answer(b"{}", cut_after=1)
        return answer_as_mlflow(request)

    with scripted(answer) as server:
        yield server.url


@contextmanager
def babbling() -> Iterator[str]:
    with scripted(lambda request: Answer(b"<html>" + bytes(5 << 20))) as server:
        yield server.url


@contextmanager
def denying() -> Iterator[str]:
    with scripted(lambda request: answer_json({"message": "who are you"}, 401)) as server:
        yield server.url


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("server", "reason", "limit"),
    [
        (refusing, "Connection refused", 1.0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (hanging, "did not answer before the end of the run", 1.0),
                (dying, "127.0.0.1", 1.0),
            )
        ),
        (babbling, "does not answer as MLflow does", 0.0),
        (denying, "answered 401: who are you. Set MLFLOW_TRACKING_USERNAME", 0.0),
    ],
)
def test_run_is_the_same_whatever_the_server_does(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    untracked: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    server: object,
    reason: str,
    limit: float,
) -> None:
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 1.0)
    with server() as uri:  # type: ignore[operator]
        mlflow = {"tracking_uri": uri}
        training = train_tracked(pictures, cache, tmp_path, NONE | {"mlflow": mlflow})
    assert training.outcome == "succeeded"
    assert training.recorder.curve() == untracked.curve()
    assert training.recorder.evaluations == untracked.evaluations
    assert training.closing < limit + 2.0
    [(message, data)] = training.events("tracking_failed")
    assert message.startswith("MLflow does not get the metrics now: ")
    assert reason in data["reason"]
    [(_, lost)] = training.events("tracking_incomplete")
    assert lost["tracker"] == "mlflow"
    assert lost["points"] > 0


@pytest.mark.parametrize("is_lost", [True, False])
def test_refusal_after_a_lost_answer_is_tried_again(
    pictures: DatasetIndex, tmp_path: Path, is_lost: bool
) -> None:
    """MLflow answers 400 while another request with the same parameters, which seemed lost, is at work."""
    refusal = {"error_code": "BAD_REQUEST", "message": "UNIQUE constraint failed: params.key"}
    answers = [Answer(b"{}", cut_after=1)] * is_lost + [answer_json(refusal, 400)]

    def answer(request: Request) -> Answer:
        is_log = request.path.endswith("log-batch")
        return answers.pop(0) if is_log and answers else answer_as_mlflow(request)

    recorder = Recorder(tmp_path / "reports")
    with scripted(answer) as server:
        spec = resolved(pictures, track=NONE | {"mlflow": {"tracking_uri": server.url}})
        assert spec.track.mlflow is not None
        tracker = MLflowServer(spec.track.mlflow, TrackedRun("job_1", 1, spec, None, tmp_path))
        delivery = Delivery(tracker, recorder, retry_seconds=0.01)
        delivery.put([Point(1, 0.0, {"train/loss": 1.0})])
        delivery.end("succeeded")
        delivery.wait(time.monotonic() + 60)
        assert server.requests[-1].path.endswith("runs/update") == is_lost
    kinds = [kind for kind, _, _ in recorder.events]
    assert kinds == ["tracking", "tracking_failed"] + ["tracking_incomplete"] * (not is_lost)


@pytest.mark.usefixtures("without_plots")
def test_redirects_are_not_followed_and_hosts_are_checked_again(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(answer_as_mlflow) as target:
        moved = Answer(status=307, headers={"Location": f"{target.url}/x"})
        with scripted(lambda request: moved) as server:
            training = train_tracked(
                pictures, cache, tmp_path, NONE | {"mlflow": {"tracking_uri": server.url}}
            )
            [(_, data)] = training.events("tracking_failed")
            assert "answered 307" in data["reason"]
            assert len(server.requests) == 1
        track = NONE | {"mlflow": {"tracking_uri": target.url}}
        spec = resolved(pictures, track=track)
        run_ = TrackedRun("job_1", 1, spec, None, tmp_path, hosts=["mlflow.example.org"])
        recorder = Recorder(tmp_path / "other")
        with tracking.TrackingReporter(recorder, run_):
            wait_for(lambda: bool(recorder.events))
        assert "Ask the operator to add it to DASL_TRACKING_HOSTS" in recorder.events[0][1]
        assert target.requests == []


def test_credentials_come_from_the_environment(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = []
    for variables in (
        {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "pw"},
        {"MLFLOW_TRACKING_TOKEN": "t0"},
    ):
        with scripted(answer_as_mlflow) as server, monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            spec = resolved(pictures, track=NONE | {"mlflow": {"tracking_uri": server.url}})
            recorder = Recorder(tmp_path)
            with tracking.TrackingReporter(recorder, TrackedRun("job_1", 1, spec, None, tmp_path)):
                pass
            assert "tracking_failed" not in {kind for kind, _, _ in recorder.events}
            headers += [server.requests[0].headers["authorization"]]
            assert all(request.headers["authorization"] for request in server.requests)
    assert headers == ["Basic bWU6cHc=", "Bearer t0"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("without_plots")
def test_offline_run_of_wandb_is_an_artifact(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    untracked: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")  # the spec decides
    # The start of wandb's process and the end of a run wait for it; on a busy machine it takes longer than usual.
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "600")
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 600.0)
    wandb = {"project": "birds", "entity": "lab"}
    training = train_tracked(pictures, cache, tmp_path, NONE | {"wandb": wandb}, attempt=2)
    recorder = training.recorder
    assert recorder.curve() == untracked.curve()
    [(_, data)] = training.events("tracking")
    assert (data["tracker"], data["address"]) == ("wandb", "wandb-2.tar")
    (tmp_path / "wandb-2.tar").write_bytes(recorder.artifacts["wandb-2.tar"])
    with tarfile.open(tmp_path / "wandb-2.tar") as tar:
        tar.extractall(tmp_path / "synced")  # `filter` is newer than Debian's Python 3.11.2
    [file] = (tmp_path / "synced").glob("offline-run-*-job_1-2/run-job_1-2.wandb")
    records = list(wandb_records(file))
    [header] = [r.run for r in records if r.WhichOneof("record_type") == "run"]
    assert (header.project, header.entity, header.run_group) == ("birds", "lab", "job_1")
    config = {entry.key: json.loads(entry.value_json) for entry in header.config.update}
    assert config["train"]["epochs"] == 3
    losses = wandb_history(records, "train/loss")
    assert list(losses) == list(range(1, TOTAL + 1))
    assert list(losses.values()) == pytest.approx(recorder.curve())
    assert list(wandb_history(records, "untrained/knn_top1")) == [0]
    assert [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"] == [0]


@pytest.mark.parametrize(
    ("package", "track", "remedy"),
    [
        ("wandb", NONE | {"wandb": {}}, "dasl[wandb] where ranks run, or set track.wandb: null."),
        ("tensorboardX", {}, "tensorboardX where ranks run, or set track.tensorboard: false."),
    ],
)
@pytest.mark.usefixtures("without_plots")
def test_missing_package_is_named(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    track: dict[str, object],
    remedy: str,
) -> None:
    for name in [package, *(each for each in sys.modules if each.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    training = train_tracked(pictures, cache, tmp_path, track)
    assert training.outcome == "succeeded"
    [(_, data)] = training.events("tracking_failed")
    assert data["reason"].endswith(f"Install {remedy}")
