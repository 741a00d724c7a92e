"""Model run: `python -m workers.model_run --run R --model-run MRUN`.

It evaluates the backbone of a checkpoint on a data set, embeds a data set, or exports the backbone. If a node has a free
GPU, it works there in an actor of Ray; otherwise in this process on all cores. A repeated run starts from scratch.
Environment, token and exit code are as for `workers.ingest`.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from service.client.attempt_token import TOKEN_VARIABLE, read_attempt_token
from service.client.worker import WorkerClient
from service.protocol import EmbeddingSettings, ExportSettings, ModelRunReport, ModelRunStart
from service.wire.checkpoints import FileEntry
from workers import memory_limit
from workers.artifacts import UPLOAD_PAUSES, download, remove_files, upload
from workers.datasets import open_dataset
from workers.failures import storable
from workers.heartbeats import Heartbeats
from workers.task_process import run_task

logger = logging.getLogger("workers.model_run")

# A GPU that the service saw as free may be in use by now.
_GPU_PATIENCE_SECONDS = 60.0
Result = dict[str, Any]


class ModelRun:
    """The work of one run.

    Args:
        report: called with the number of images read, the total, and the phase.
        use_gpu: whether this process may use a GPU.
    """

    def __init__(self, start: ModelRunStart, report: Heartbeats, *, use_gpu: bool) -> None:
        import torch

        self.start, self.report = start, report
        self.device = torch.device("cuda" if use_gpu and torch.cuda.is_available() else "cpu")
        # A superseded run may still write, so each process has its own folder.
        self.uri = f"{start.artifacts_uri}/{uuid.uuid4().hex}"
        self.files: list[FileEntry] = []
        self.has_uploaded = False  # even a part of a file

    def work(self, folder: Path) -> Result:
        """Do the work in a folder; return its result, with the files in `self.files`.

        Raises:
            ValueError: it cannot be done; the message says why.
            StoreError: the artifact store cannot be read.
            StaleAttempt: the run was superseded or deleted.
        """
        import torch

        from dasl_core.machine import usable_cores

        if self.device.type == "cpu":
            torch.set_num_threads(usable_cores())
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        download(self.start.checkpoint.uri, self.start.checkpoint.files, checkpoint)
        works = {"export": self._export, "evaluation": self._evaluate, "embedding": self._embed}
        return works[self.start.kind](checkpoint, folder)

    def _embed(self, checkpoint: Path, folder: Path) -> Result:
        from dasl_core.data.cache import cache_root
        from dasl_core.embedding import ImagesWithFeatures, load_backbone, write_parts
        from dasl_core.machine import usable_cores

        assert self.start.dataset is not None, "images are embedded"
        settings = EmbeddingSettings.model_validate(self.start.settings)
        index = open_dataset(self.start.dataset, self.start.readable(), folder)
        count = len(index)
        images = ImagesWithFeatures(
            load_backbone(checkpoint, self.device),
            index,
            cache=cache_root() / self.start.dataset.id,
            threads=usable_cores(),
            on_decoded=lambda read: self.report(read, count, "decoding"),
        )
        try:
            images.check(self.start.dataset.name)
            began = time.monotonic()
            batches = images.batches(
                settings.features,
                normalize=settings.normalize,
                dtype=settings.dtype,
                on_done=lambda done: self.report(done, count, "features"),
            )
            parts = folder / "parts"
            parts.mkdir()
            for part in write_parts(batches, parts, settings.format):
                self._upload(part)
                part.unlink()
            seconds = time.monotonic() - began
            images.check(self.start.dataset.name)
        finally:
            images.close()
        left_out = sorted(images.unreadable)[:10]
        return images.facts(seconds) | {"unreadable_images": [index.paths[at] for at in left_out]}

    def _evaluate(self, checkpoint: Path, folder: Path) -> Result:
        from dasl_core.data.cache import cache_root
        from dasl_core.embedding import evaluate_backbone, load_backbone
        from dasl_core.machine import usable_cores
        from dasl_core.spec import ResolvedEvaluate
        from service.client.worker import finite

        assert self.start.dataset is not None, "it is evaluated on images"
        index = open_dataset(self.start.dataset, self.start.readable(), folder)
        count, steps = len(index), 0

        def at_work() -> None:
            nonlocal steps
            steps += 1
            self.report(steps, 0, "evaluation")  # the total is unknown

        began = time.monotonic()
        evaluated = evaluate_backbone(
            load_backbone(checkpoint, self.device),
            index,
            self.start.dataset.name,
            ResolvedEvaluate.model_validate(self.start.settings),
            cache=cache_root() / self.start.dataset.id,
            threads=usable_cores(),
            on_decoded=lambda read: self.report(read, count, "decoding"),
            at_work=at_work,
        )
        return {
            "metrics": {subject: finite(metrics) for subject, metrics in evaluated.metrics.items()},
            "images": evaluated.images,
            "seconds": round(time.monotonic() - began, 3),
            "device": self.device.type,
        }

    def _export(self, checkpoint: Path, folder: Path) -> Result:
        from dasl_core.export.formats import FORMATS, export_checkpoint

        format = ExportSettings.model_validate(self.start.settings).format
        result = export_checkpoint(checkpoint, format, folder / "export" / FORMATS[format])
        # Large ONNX weights are in a second file.
        written = result if result.is_dir() else result.parent
        for file in sorted(written.iterdir()):
            self._upload(file)
        return {"format": format}

    def _upload(self, file: Path) -> None:
        self.has_uploaded = True
        self.files.append(upload(file, f"{self.uri}/{file.name}", pauses=UPLOAD_PAUSES))


def carry_out(client: WorkerClient, start: ModelRunStart, *, use_gpu: bool) -> None:
    """Do the work of a run, and report its result or a failure that the user can fix."""
    try:
        with (
            Heartbeats(client, start.heartbeat_seconds) as report,
            tempfile.TemporaryDirectory(prefix="dasl-") as name,
        ):
            run = ModelRun(start, report, use_gpu=use_gpu)
            try:
                result = run.work(Path(name))
            except Exception:
                if run.has_uploaded:
                    remove_files(run.uri)  # no row refers to them
                raise
    except ValueError as error:
        client.task_failed(ModelRunReport, type(error).__name__, storable(str(error)))
        return
    uri = run.uri if run.files else None
    client.task_succeeded(ModelRunReport, result=result, uri=uri, files=run.files)


class OnGpu:
    """A Ray actor with its own GPU, which watches the process that does the work."""

    def ready(self) -> None:
        """Return once the actor runs."""

    def work(self, arguments: list[str], access: dict[str, str]) -> int:
        """Do the work of a run on the GPU; return the exit code.

        Args:
            arguments: of the command line of the run.
            access: the environment variables with the address of the API and the token.
        """
        os.environ |= access
        return memory_limit.run_or_report(["model_run_on_gpu", *arguments])


def _code_on_gpu(options: argparse.Namespace) -> int | None:
    """Do the work of a run on a GPU; return its exit code, `None` if Ray has no free one."""
    import ray

    ray.init(logging_level=logging.WARNING)
    actor = ray.remote(OnGpu).options(num_gpus=1, num_cpus=0, max_restarts=0).remote()
    ready, _ = ray.wait([actor.ready.remote()], timeout=_GPU_PATIENCE_SECONDS)
    if not ready:
        logger.info("Ray has no free GPU; this run uses the cores of its head")
        ray.kill(actor)
        ray.shutdown()
        return None
    access = {"DASL_API_URL": os.environ["DASL_API_URL"], TOKEN_VARIABLE: read_attempt_token()}
    arguments = ["--run", options.run, "--model-run", options.model_run]
    return int(ray.get(actor.work.remote(arguments, access)))


def _run(client: WorkerClient, options: argparse.Namespace) -> None:
    start = client.task_start(ModelRunStart)
    if start.gpu_is_free and start.kind != "export":
        code = _code_on_gpu(options)
        if code is not None:  # it was reported there
            sys.exit(code)
    carry_out(client, start, use_gpu=False)


if __name__ == "__main__":
    sys.exit(run_task("model-run", ModelRunReport, _run))
