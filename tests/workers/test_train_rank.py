"""Whole attempts in this process: the real driver, rank, API and data sets. Only Ray is left out."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from dasl_core.data import canvases
from dasl_core.spec.locations import OUTSIDE
from dasl_core.vocabulary import Desired
from service import credentials, lifecycle
from service.client import Client
from service.client.sync.models import Dataset, Job
from service.client.worker import WorkerClient
from service.datasets.ingests.repository import begin_ingest
from service.protocol import AttemptStart
from service.wire.checkpoints import FileEntry
from tests.support.api_server import Service
from tests.support.polling import wait_for
from tests.support.training_world import image_folder, skip_plots, tiny_spec, without_onnx
from tests.support.uploads import dispatcher_of
from workers import artifacts, driver, ingest, placement, scratch
from workers.rank import train_rank
from workers.reporter import ApiReporter

pytestmark = pytest.mark.xdist_group("rank")  # they share a service and a trained job

NODE = placement.RankNode("a" * 56, "10.0.0.1")
ONE_EPOCH = {"epochs": 1}
NO_EVALUATION = {"holdout": None}


def rank_here(start: AttemptStart, config: dict[str, object]) -> BaseException | None:
    """Run the only rank, and return its error, as Ray Train does for the driver."""
    try:
        train_rank({**config, "log_format": "text", "driver": NODE.id})
    except ValueError as error:
        return error
    return None


class Deployment:
    """A running API whose jobs may read the folder `data` only, and what its dispatcher would start."""

    def __init__(self, folder: Path) -> None:
        self.data, self.secret, self.cache = folder / "data", folder / "secret", folder / "cache"
        self.secret.mkdir()
        self.service = Service(folder / "home", heartbeat_seconds=0.05, dataset_roots=(self.data,))
        self.client = Client(self.service.url, self.service.token)

    def close(self) -> None:
        self.client.close()
        self.service.close()

    def registered(self, name: str, **images: Any) -> Dataset:
        folder = image_folder(self.data / name, **images)
        return self.ingested(self.client.datasets.add(str(folder), name))

    def uploaded(self, name: str) -> Dataset:
        dataset = self.client.datasets.upload(image_folder(self.secret / name), name)
        dispatcher_of(self.service.settings, self.service.database).round()
        return self.ingested(dataset)

    def ingested(self, dataset: Dataset) -> Dataset:
        token, hashed = credentials.new_token()
        with self.service.database.write() as session:
            run = begin_ingest(session, dataset.id, hashed)
            assert run is not None
            name = run.submission_id
        assert self._main(ingest.main, token, run=name, dataset=dataset.id) == 0
        ready = self.client.datasets.get(dataset.id)
        assert ready.state == "ready", ready.error_message
        return ready

    def submit(self, **changes: Any) -> Job:
        resources = {"workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0}
        return self.client.jobs.submit(tiny_spec(**{"resources": resources, **changes}))

    def attempt(self, job: Job) -> Job:
        """Run the next attempt of a job to its end."""
        token, hashed = credentials.new_token()
        with self.service.database.write() as session:
            attempt = lifecycle.start_attempt(session, job.id, hashed)
            assert attempt is not None
            run, number = attempt.submission_id, attempt.number
        code = self._main(driver.main, token, run=run, job=job.id, attempt=number)
        job = job.refresh()
        assert code == int(job.status == "failed"), job.error
        return job

    def trained(self, job: Job) -> Job:
        """Run the next attempt of a job, which succeeds."""
        job = self.attempt(job)
        assert job.status == "succeeded", job.error
        return job

    def refusal(self, job: Job) -> str:
        """Run the next attempt of a job, which fails for good; return why."""
        job = self.attempt(job)
        assert job.status == "failed"
        assert job.error is not None
        return job.error.message

    def attempt_until(self, step: int, job: Job, stop: Callable[[], Job]) -> Job:
        """Run the next attempt of a job; once it reports a step, request that it stops."""
        progress = ApiReporter.progress

        def report(reporter: ApiReporter, values: dict[str, Any]) -> None:
            progress(reporter, values)
            if values.get("step") == step:
                stop()
                wait_for(lambda: reporter.desired() != "run")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ApiReporter, "progress", report)
            return self.attempt(job)

    def losses(self, job: Job) -> dict[int, float | None]:
        series = self.client.jobs.metrics(job.id, name="loss")
        return dict(zip(series.step, series.values["loss"], strict=True))

    def evaluation(self, job: Job, subject: str) -> Mapping[str, float]:
        """Return the newest evaluation of a subject."""
        every = self.client.jobs.evaluations(job.id)
        return [each.metrics for each in every if each.subject == subject][-1]

    def steps(self, job: Job) -> list[tuple[int, bool]]:
        return [(each.step, each.final) for each in self.client.jobs.checkpoints(job.id)]

    def _main(self, main: Callable[[], int], token: str, **options: object) -> int:
        """Run a program of the workers, and return its exit code."""
        root, threads = logging.getLogger(), torch.get_num_threads()
        handlers, level = root.handlers[:], root.level
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DASL_API_URL", self.service.url)
            patch.setenv("DASL_WORKER_TOKEN", token)
            patch.setenv("DASL_CACHE_DIR", str(self.cache))
            patch.setenv("DASL_LOG_FORMAT", "text")
            patch.setattr("sys.argv", ["main", *words])
            patch.setattr(driver, "run_ranks", rank_here)
            patch.setattr("ray.train.torch.get_device", lambda: torch.device("cpu"))
            patch.setattr("ray.util.get_node_ip_address", lambda: NODE.address)
            patch.setattr(placement, "_nodes", (NODE,))
            # It takes ten seconds, and has its own tests.
            patch.setattr("dasl_core.train.checkpointing.export_backbone", without_onnx)
            # It could not be undone, and other tests measure the memory of this process.
            patch.setattr("dasl_core.machine.keep_freed_memory", lambda: None)
            try:
                return main()
            finally:
                root.handlers[:] = handlers
                root.setLevel(level)
                torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    deployment.registered("pictures")
    yield deployment
    deployment.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots, but for the job that is made before any test: they take longer than these trainings."""
    skip_plots(monkeypatch)


@pytest.fixture(scope="module")
def first(deployment: Deployment) -> Job:
    """A job that was trained in one attempt."""
    return deployment.trained(deployment.submit())


def test_job_is_trained_to_its_end(deployment: Deployment, first: Job) -> None:
    jobs = deployment.client.jobs
    assert (first.status, first.attempt, first.restarts) == ("succeeded", 1, 0)
    assert deployment.steps(first) == [(3, False), (6, False), (9, True)]
    assert list(deployment.losses(first)) == list(range(1, 10))
    events = {event.type: event.message for event in jobs.events(first.id)}
    assert events["placement"] == f"1 rank on {NODE.address}"
    assert "report.html" in [each.name for each in jobs.artifacts(first.id)]
    assert first.progress is not None
    assert (first.progress.step, first.progress.total_steps) == (9, 9)


def test_paused_job_resumes_where_it_stopped(
    deployment: Deployment, first: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = deployment.submit(train={"checkpoint_every_epochs": 3})
    job = deployment.attempt_until(3, job, job.pause)
    assert (job.status, deployment.steps(job)) == ("paused", [(3, False)])
    beats: list[Mapping[str, Any]] = []
    heartbeat = WorkerClient.heartbeat

    def recorded(
        client: WorkerClient, progress: Mapping[str, Any] | None = None, **options: Any
    ) -> Desired:
        beats.append(progress or {})
        return heartbeat(client, progress, **options)

    def slow(uri: str, files: Sequence[FileEntry], *arguments: Any) -> None:
        artifacts.download(uri, files, *arguments)
        # Else a run that downloads a large checkpoint would seem to hang.
        wait_for(lambda: any("worked" in beat for beat in beats), 20)

    monkeypatch.setattr(WorkerClient, "heartbeat", recorded)
    monkeypatch.setattr(scratch, "download", slow)
    job = deployment.trained(job.resume())
    assert job.attempt == 2
    assert deployment.losses(job) == deployment.losses(first)
    assert deployment.evaluation(job, "backbone") == deployment.evaluation(first, "backbone")


def test_clone_goes_on_from_another_job_with_other_settings(
    deployment: Deployment, first: Job
) -> None:
    """A run that resumed exactly would refuse them."""
    changes = {"train": {"epochs": 4}, "augment": {"flip": 0.0}}
    job = deployment.trained(deployment.client.jobs.clone(first.id, changes))
    assert list(deployment.losses(job)) == [10, 11, 12]


def test_job_is_evaluated_on_another_data_set(deployment: Deployment) -> None:
    """The images to train on have no classes, so that their figures could not be these."""
    trained = deployment.registered("unlabelled", classes=0, per_class=20)
    other = deployment.registered("labelled", classes=2, per_class=5)
    job = deployment.submit(
        dataset="unlabelled", train=ONE_EPOCH, evaluate={"dataset": "labelled", "every_epochs": 1}
    )
    job = deployment.trained(job)
    events = [event.message for event in deployment.client.jobs.events(job.id)]
    assert "Evaluating the untrained network on 10 held-out images" in events
    assert "recall_at_1" in deployment.evaluation(job, "backbone")
    assert {trained.id, other.id} <= {folder.name for folder in deployment.cache.iterdir()}


def test_weights_are_read_from_readable_folders_only(deployment: Deployment, first: Job) -> None:
    """The service has checked them, but a part of their path may have become a link since."""
    final = deployment.client.jobs.checkpoints(first.id)[-1]
    inside, outside = deployment.data / "inside", deployment.secret / "outside"
    for folder in (inside, outside):
        deployment.client.checkpoints.download(final.id, folder)
    link = deployment.data / "link"
    link.symlink_to(inside)
    job, late = (
        deployment.submit(backbone={"pretrained": str(link)}, train=ONE_EPOCH) for _ in range(2)
    )
    start = deployment.evaluation(deployment.trained(job), "start")
    end = deployment.evaluation(first, "backbone")
    assert start.items() >= {k: v for k, v in end.items() if not k.startswith("phi_")}.items()
    link.unlink()
    link.symlink_to(outside)
    assert deployment.refusal(late) == f"backbone.pretrained: {link} {OUTSIDE}"


def test_upload_is_read_from_its_own_folder_only(deployment: Deployment) -> None:
    dataset = deployment.uploaded("uploaded")
    job, late = (
        deployment.submit(dataset="uploaded", train=ONE_EPOCH, evaluate=NO_EVALUATION)
        for _ in range(2)
    )
    deployment.trained(job)
    file, target = Path(dataset.uri), deployment.data / "readable.tar"
    file.rename(target)
    file.symlink_to(target)
    message = deployment.refusal(late)
    assert message.startswith("the data set uploaded cannot be read: ")
    assert message.endswith(OUTSIDE)


def test_rank_uses_the_cpus_that_its_job_has(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools, used = [], []

    def pool(threads: int, **options: Any) -> ThreadPoolExecutor:
        pools.append(threads)
        used.append(torch.get_num_threads())
        return ThreadPoolExecutor(threads, **options)

    monkeypatch.setattr(canvases, "ThreadPoolExecutor", pool)
    resources = {"workers": 1, "cpus_per_worker": 3, "gpus_per_worker": 0}
    job = deployment.submit(resources=resources, train=ONE_EPOCH, evaluate=NO_EVALUATION)
    deployment.trained(job)
    assert set(pools) == set(used) == {3}


def test_cancelled_job_stops_and_keeps_its_checkpoints(deployment: Deployment) -> None:
    job = deployment.submit()
    job = deployment.attempt_until(3, job, job.cancel)
    assert (job.status, deployment.steps(job)) == ("cancelled", [(3, False)])
    assert list(deployment.losses(job)) == [1, 2, 3]
