"""A short training as its worker reports it, with files of a checkpoint."""

import time
from typing import Any

from service.client import WorkerClient
from service.wire.checkpoints import FileEntry
from tests.support.api_server import write_files

SPEC: dict[str, Any] = {
    "name": "first",
    "dataset": "emoji",
    "train": {"epochs": 2, "batch_size": 64},
    "tags": {"team": "vision"},
}
FILES = {"backbone.safetensors": bytes(range(256)) * 5000, "model.json": b"{}", "empty.bin": b""}


def train(worker: WorkerClient) -> str:
    """Report a short training of `SPEC`; return the id of its final checkpoint."""
    start = worker.start()
    assert start.job_spec().train.batch_size == 64
    points = [
        {"step": step, "time": time.time(), "values": {"loss": 5.0 - step, "lr": 0.1}}
        for step in range(3)
    ]
    worker.metrics(points)
    progress = {"step": 18, "total_steps": 18, "epoch": 2, "epochs": 2, "loss": 3.0}
    progress |= {"knn": 0.5, "recall_at_1": 0.25}
    assert worker.heartbeat(progress) == "run"
    metrics = {"knn_top1": 0.5, "recall_at_1": 0.25}
    worker.evaluation(step=18, epoch=2, subject="backbone", metrics=metrics)
    worker.event("note", "half way")
    for step, final in ((9, False), (18, True)):
        uri = f"{start.artifacts_uri}/checkpoints/{step}"
        files = [FileEntry.model_validate(entry) for entry in write_files(uri, FILES)]
        checkpoint = worker.checkpoint(step=step, epoch=step / 9, uri=uri, files=files, final=final)
        again = worker.checkpoint(step=step, epoch=step / 9, uri=uri, files=files, final=final)
        assert checkpoint == again
    [picture] = write_files(f"{start.artifacts_uri}/pictures", {"curves.png": b"PNG"})
    worker.artifact(
        name="curves.png",
        uri=f"{start.artifacts_uri}/pictures/curves.png",
        size=3,
        sha256=str(picture["sha256"]),
        content_type="image/png",
    )
    return checkpoint
