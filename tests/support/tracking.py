"""Runs with trackers, and readers of what these wrote."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from dasl_core.data.index import DatasetIndex
from dasl_core.track.reporter import TrackingReporter
from dasl_core.track.tracker import TrackedRun
from dasl_core.vocabulary import TrainingOutcome
from tests.support.polling import until
from tests.support.processes import free_port
from tests.support.training_world import Recorder, resolved, run


@dataclass
class TrackedTraining:
    """A training with trackers that is over.

    Attributes:
        closing: seconds that the trackers took at the end.
    """

    recorder: Recorder
    outcome: TrainingOutcome
    closing: float

    def events(self, type: str) -> list[tuple[str, dict[str, Any]]]:
        """Return message and data of the events of a type."""
        return [(message, data) for kind, message, data in self.recorder.events if kind == type]


def train_tracked(
    index: DatasetIndex,
    cache: Path,
    folder: Path,
    track: dict[str, Any],
    *,
    recorder: Recorder | None = None,
    attempt: int = 1,
    resume: Path | None = None,
    resume_step: int | None = None,
    job: str = "job_1",
    **changes: Any,
) -> TrackedTraining:
    """Train the tiny spec with `changes`; trackers write to `folder`."""
    recorder = recorder or Recorder(folder / "reports")
    spec = resolved(index, track=track, **changes)
    files = folder / f"attempt-{attempt}"
    files.mkdir(parents=True)
    tracked = TrackedRun(
        id=job,
        attempt=attempt,
        spec=spec,
        resume_step=resume_step,
        folder=files,
        publish=recorder.artifact,
        url="http://dasl/#/jobs/job_1",
    )
    with TrackingReporter(recorder, tracked) as reporter:
        outcome = run(spec, index, cache, reporter, resume)
        reporter.ended(outcome)
        ended = time.monotonic()
    return TrackedTraining(recorder, outcome, time.monotonic() - ended)


def scalars(folder: Path) -> EventAccumulator:
    """Read all event files of a folder as TensorBoard does, without sampling."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def steps_of(folder: Path, tag: str = "train/loss") -> list[int]:
    """Return the steps of a series in the event files of a folder."""
    return [event.step for event in scalars(folder).Scalars(tag)]


def wandb_records(file: Path) -> Iterator[wandb_internal_pb2.Record]:
    """Read the records of a `.wandb` file: a log of LevelDB after seven bytes of W&B."""
    content, block = file.read_bytes(), 32_768
    at, part = 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            yield record
            part = b""


def wandb_history(records: list[wandb_internal_pb2.Record], name: str) -> dict[int, float]:
    """Return the values of a metric by step."""
    rows = (
        {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    )
    return {row["_step"]: row[name] for row in rows if name in row}


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python module as a process group, which is killed at the end."""
    running = subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield running
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


@contextmanager
def mlflow_server(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a real MLflow server with a database in `folder`; returns its address and its process group."""
    address = f"http://127.0.0.1:{free_port()}"
    command = ["mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--default-artifact-root", str(folder / "artifacts"), "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with process(*command, **quiet) as server:

        def answers() -> bool | None:
            assert server.poll() is None, "the MLflow server has ended"
            try:
                return httpx.get(f"{address}/health", timeout=5).status_code == 200 or None
            except httpx.TransportError:
                return None

        until(answers, "the MLflow server")
        yield address, server.pid
