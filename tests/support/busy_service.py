"""A running API with jobs in every state, as a person meets it, and ways to make very many."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import insert, select

from service import ids
from service.client import Client, WorkerClient
from service.db.models import ClusterSnapshot, Job, Metric
from service.db.session import Database
from service.protocol import ModelRunReport, ModelRunStart
from service.scheduling.dispatcher_report import DispatcherReport
from service.tasks.repository import model_runs
from tests.support.api_server import Service, write_files
from tests.support.decisions import store_decisions
from tests.support.pictures import pictures
from tests.support.training_reports import EPOCHS, FINAL_STEP, STEPS, picture, train

_CONTENT_TYPES = {".json": "application/json", ".webp": "image/webp", ".html": "text/html"}


class BusyService:
    """Jobs of one tenant on the data set `birds`, in the states that their names say."""

    def __init__(self, service: Service, images: Path) -> None:
        self.service = service
        self.client = Client(service.url, service.token)
        self.jobs: dict[str, str] = {}
        dataset = self.client.datasets.add(str(images), "birds")
        service.ingest(dataset)
        self.dataset = dataset.id
        snapshot(service.database)

    def fill(self) -> None:
        """Submit and run the jobs."""
        self.experiment()
        self.finished("baseline", seed=0, gain=0.0, tags={"study": "dar", "team": "vision"})
        self.finished("with-dar", seed=1, gain=0.06, tags={"study": "dar"}, dar={"weight": 0.5})
        self.collapsed("collapsed")
        self.failed("failed")
        self.running("running", 0.45)
        self.paused("paused")
        for name in ("queued", "queued-next"):
            self.submit(name)
        store_decisions(self.service.database)
        self.model_runs("baseline")

    def experiment(self) -> None:
        """Submit an experiment of three variants and three seeds, whose last seed is not trained yet."""
        variants = {"plain": {}, "dar": {"dar": {"weight": 0.5}}, "sec": {"sec": {"weight": 0.1}}}
        request = {
            "name": "regularizers",
            "spec": {"dataset": "birds", "train": {"epochs": EPOCHS, "batch_size": 32}},
            "variants": variants,
            "seeds": [0, 1, 2],
            "metric": "knn_top1",
        }
        experiment = self.client.experiments.submit(request)
        self.jobs["regularizers"] = experiment.id
        gains = {"plain": 0.0, "dar": 0.05, "sec": 0.005}
        for member in experiment.jobs:
            assert member.id is not None
            if member.seed == 2 and member.variant != "plain":
                continue
            worker = self.service.start_attempt(member.id)
            worker.start()
            share = 0.5 if member.seed == 2 else 1.0
            random = np.random.default_rng(member.seed)
            train(worker, int(FINAL_STEP * share), random, gains[member.variant])
            if share == 1.0:
                worker.finish("succeeded")

    def model_runs(self, name: str) -> None:
        """Request runs of the final checkpoint of a job: one of each kind has ended, and one runs."""
        (final,) = [each.id for each in self.client.jobs.checkpoints(self.jobs[name]) if each.final]
        evaluation = self.client.checkpoints.evaluate(final, "birds")
        worker = self.service.start_task(model_runs, evaluation.id)
        worker.task_start(ModelRunStart)
        backbone = {"knn_top1": 0.58, "instance_recall_at_1": 0.52, "effective_rank": 41.23}
        metrics = {"backbone": backbone, "raw": {"knn_top1": 0.22, "instance_recall_at_1": 0.47}}
        worker.task_succeeded(ModelRunReport, result={"metrics": metrics})
        self.embedding = self.embedded(final)
        failed = self.client.checkpoints.export(final, "hf")
        worker = self.service.start_task(model_runs, failed.id)
        worker.task_start(ModelRunStart)
        problem = "format: hf does not know this network. Choose onnx."
        worker.task_failed(ModelRunReport, "ValueError", problem)
        running = self.client.checkpoints.embed(final, "birds", features="pooled", normalize=True)
        worker = self.service.start_task(model_runs, running.id)
        worker.task_start(ModelRunStart)
        progress = {"images_read": 288, "images_total": 640}
        worker.heartbeat({**progress, "phase": "features"})

    def embedded(self, checkpoint: str) -> str:
        """Let a run embed the images with a checkpoint; return its id."""
        embedding = self.client.checkpoints.embed(checkpoint, "birds")
        worker = self.service.start_task(model_runs, embedding.id)
        uri = f"{worker.task_start(ModelRunStart).artifacts_uri}/1"
        files = write_files(uri, {"embedding-00000.parquet": bytes(3000)})
        result = {"images": 640, "shape": [512], "images_per_second": 600.0}
        worker.task_succeeded(ModelRunReport, result=result, uri=uri, files=files)
        return embedding.id

    def submit(self, name: str, tags: Mapping[str, str] | None = None, **spec: Any) -> str:
        """Submit a job."""
        given = {"train": {"epochs": EPOCHS, "batch_size": 32}, "tags": dict(tags or {})} | spec
        job = self.client.jobs.submit({"dataset": "birds", "name": name, **given})
        self.jobs[name] = job.id
        return job.id

    def running(self, name: str, share: float = 0.4, **spec: Any) -> WorkerClient:
        """Submit a job and run it for a share of its steps."""
        job = self.submit(name, **spec)
        worker = self.service.start_attempt(job)
        worker.start()
        self.service.log(job, "INFO 12 ranks start\nWARNING the cache is small\nINFO epoch 1\n")
        train(worker, int(FINAL_STEP * share), np.random.default_rng(len(self.jobs)), 0.0)
        return worker

    def finished(self, name: str, *, seed: int, gain: float, **spec: Any) -> None:
        """Submit a job and run it to its end, with checkpoints, a picture and a verdict."""
        job = self.submit(name, **spec)
        worker = self.service.start_attempt(job)
        folder = worker.start().artifacts_uri
        metrics = train(worker, FINAL_STEP, np.random.default_rng(seed), gain)
        for epoch in (EPOCHS // 2, EPOCHS):
            uri = f"{folder}/checkpoints/{epoch}"
            files = write_files(uri, {"backbone.safetensors": bytes(2000), "model.json": b"{}"})
            worker.checkpoint(
                step=epoch * STEPS,
                epoch=epoch,
                uri=uri,
                files=files,  # type: ignore[arg-type]
                metrics={"knn_top1": metrics["knn_top1"] - (0.02 if epoch < EPOCHS else 0)},
                final=epoch == EPOCHS,
            )
        (plot,) = write_files(folder, {"curves.png": picture(seed)})
        worker.artifact(uri=f"{folder}/curves.png", content_type="image/png", **plot)  # type: ignore[arg-type]
        content = {**pictures(EPOCHS // 10 + 1, 10 * STEPS), "report.html": b"<h1>A report</h1>"}
        for written in write_files(folder, content):
            kind = _CONTENT_TYPES[Path(str(written["name"])).suffix]
            worker.artifact(uri=f"{folder}/{written['name']}", content_type=kind, **written)  # type: ignore[arg-type]
        message = f"healthy: k-NN {metrics['knn_top1'] * 100:.1f} % (28.6 % at the start, raw pixels 22.1 %)."
        about = {"knn_top1": metrics["knn_top1"]}
        worker.event(
            "verdict", message, {"verdict": "healthy", "message": message, "metrics": about}
        )
        self.service.log(job, "INFO training ends\n" * 40)
        worker.finish("succeeded")

    def collapsed(self, name: str) -> None:
        """Submit a job whose representation collapses."""
        worker = self.running(name, 0.3, method={"name": "dino"})
        figures = {"output_entropy": 11.09, "ln_k": 11.09, "embedding_std": 0.0004}
        message = "All outputs are alike: the loss is ln K. Raise teacher_temperature, or lower the learning rate."
        worker.event("collapse", message, {"cause": "uniform_output", "figures": figures})

    def failed(self, name: str) -> None:
        """Submit a job that runs out of memory."""
        worker = self.running(name, 0.05)
        message = "CUDA out of memory: 12.4 GB were needed, and 11.0 GB are there. Lower train.batch_size, or set train.micro_batches."
        error = {
            "type": "OutOfMemoryError",
            "message": message,
            "log_tail": "step 60\nOutOfMemoryError",
        }
        worker.finish("failed", error, retryable=False)

    def paused(self, name: str) -> None:
        """Submit a job and pause it."""
        worker = self.running(name, 0.6)
        self.client.jobs.pause(self.jobs[name])
        worker.finish("paused")


def snapshot(database: Database) -> None:
    """Save a cluster of one node with all of its 8 CPUs, of which jobs have few."""
    node = {
        "id": "n1",
        "name": "trainer-1",
        "address": "10.0.0.1",
        "total_cpus": 8.0,
        "total_gpus": 1.0,
        "used_cpus": 5.0,
        "used_gpus": 1.0,
    }
    with database.write() as session:
        session.add(
            ClusterSnapshot(
                id=1,
                at=datetime.now(UTC),
                alive=True,
                nodes=[node],
                dispatcher=DispatcherReport(started_at=datetime.now(UTC)).model_dump(mode="json"),
                total_cpus=8,
                total_gpus=1,
                used_cpus=5,
                used_gpus=1,
            )
        )


def add_jobs(database: Database, template: str, number: int) -> None:
    """Add copies of a job, as finished jobs of the past."""
    with database.write() as session:
        row = session.execute(select(Job.__table__).where(Job.id == template)).one()._asdict()
        start = datetime.now(UTC) - timedelta(days=90)
        rows = []
        for index in range(number):
            at = start + timedelta(minutes=index * 10)
            progress = {**row["progress"], "knn": 0.3 + 0.5 * ((index * 7919) % 1000) / 1000}
            rows.append(
                {
                    **row,
                    "id": ids.new_id("job"),
                    "name": f"sweep-{index:05d}",
                    "created_at": at,
                    "finished_at": at + timedelta(hours=1),
                    "progress": progress,
                }
            )
        session.execute(insert(Job), rows)


def add_points(
    database: Database, job: str, steps: int, names: tuple[str, ...] = ("loss",)
) -> None:
    """Add metric points of attempt 1, after its last step."""

    def points(name: str) -> Iterator[dict[str, Any]]:
        random = np.random.default_rng(abs(hash(name)) % 1000)
        noise = random.normal(0, 0.05, steps)
        for step in range(1, steps + 1):
            value = 1 + 3 * math.exp(-3 * step / steps) + float(noise[step - 1])
            yield {
                "job_id": job,
                "name": name,
                "step": 2_000 + step,
                "attempt": 1,
                "time": 1.7e9 + step,
                "value": value,
            }

    with database.write() as session:
        for name in names:
            session.execute(insert(Metric), list(points(name)))
