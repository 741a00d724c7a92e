"""Tasks of the cluster: previews and preparations of data sets, and runs of finished models."""

import os
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from service.client.aio.files import OnBytes, fetch_all
from service.client.aio.transport import AsyncResource, path_to
from service.client.aio.waiting import OUTAGE_SECONDS, Polling, wait_until
from service.client.errors import ModelRunFailed, PreparationFailed, PreviewFailed, TaskFailed
from service.client.models import ModelRun, Preparation, Preview, Task
from service.states import TaskState

AnyTask = TypeVar("AnyTask", bound=Task)
TaskWithFiles = TypeVar("TaskWithFiles", Preview, ModelRun)


class AsyncTasks(AsyncResource, Generic[AnyTask]):
    """Base of `client.previews`, `client.preparations` and `client.model_runs`."""

    _path: ClassVar[str]
    _record: type[AnyTask]
    _failed: ClassVar[type[TaskFailed]]

    async def get(self, id: str, *, patience: float | None = None) -> AnyTask:
        """Return a task."""
        path = path_to(self._path, id)
        return await self._transport.read(self._record, "GET", path, patience=patience)

    async def delete(self, id: str) -> None:
        """Delete a task with its files, and stop it if it runs. Decoded images stay in the cache."""
        await self._transport.json("DELETE", path_to(self._path, id))

    async def wait(self, id: str, **polling: Unpack[Polling[AnyTask]]) -> AnyTask:
        """Wait until a task has succeeded.

        Raises:
            PreviewFailed, PreparationFailed, ModelRunFailed: it has failed.
            WaitTimeout: it has not ended after `timeout` seconds.
        """
        task = await wait_until(
            lambda: self.get(id, patience=OUTAGE_SECONDS),
            lambda task: task.done,
            f"{self._failed.kind} {id}",
            **polling,
        )
        if task.state == TaskState.FAILED:
            raise self._failed(task)
        return task


class AsyncTasksWithFiles(AsyncTasks[TaskWithFiles]):
    """Base of tasks whose result is files."""

    async def download(
        self,
        task: TaskWithFiles,
        directory: str | os.PathLike[str],
        *,
        on_bytes: OnBytes | None = None,
        force: bool = False,
    ) -> list[Path]:
        """Download all files into `directory`, verified, and return their paths.

        Raises:
            DownloadFailed: a file is incomplete or differs from the manifest, or one exists with another content and
                `force` is False.
        """
        path, target = (self._path, task.id, "files"), Path(directory)
        return await fetch_all(self._transport, path, task.files, target, on_bytes, force)


class AsyncPreviews(AsyncTasksWithFiles[Preview]):
    """`client.previews`."""

    _path, _record, _failed = "previews", Preview, PreviewFailed

    async def request(
        self,
        dataset_id: str,
        spec: Mapping[str, Any],
        *,
        images: int = 8,
        version: int | None = None,
    ) -> Preview:
        """Draw the views of the first images of a training, in the background.

        Args:
            spec: the spec of a job, or only the relevant sections: `method`, `augment` and `backbone`. Its `dataset` is
                ignored.
            images: number of images.
            version: version of the data set; None: the newest.

        Raises:
            ApiError: 422, a field of the spec is invalid.
        """
        body: dict[str, Any] = {"spec": dict(spec), "images": images}
        if version is not None:
            body["version"] = version
        path = path_to("datasets", dataset_id, "previews")
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return await self._transport.read(Preview, "POST", path, body=body, headers=headers)

    def list(self, dataset_id: str, *, page_size: int = 100) -> AsyncIterator[Preview]:
        """Iterate over the previews of a data set, newest first."""
        path = path_to("datasets", dataset_id, "previews")
        return self._transport.records(Preview, path, {"limit": page_size})


class AsyncPreparations(AsyncTasks[Preparation]):
    """`client.preparations`."""

    _path, _record, _failed = "preparations", Preparation, PreparationFailed

    async def request(self, dataset_id: str, spec: Mapping[str, Any] | None = None) -> Preparation:
        """Decode the images of a data set for trainings, in the background.

        If an equal preparation is queued or running, return that.

        Args:
            spec: the spec of the training, or only the relevant fields: `backbone.image_size`,
                `backbone.in_channels` and `train.image_cache`. Its `dataset` is ignored.

        Raises:
            ApiError: 422, a field of the spec is invalid.
        """
        path, body = path_to("datasets", dataset_id, "preparations"), {"spec": dict(spec or {})}
        return await self._transport.read(Preparation, "POST", path, body=body, repeatable=True)

    def list(self, dataset_id: str, *, page_size: int = 100) -> AsyncIterator[Preparation]:
        """Iterate over the preparations of a data set, newest first."""
        path = path_to("datasets", dataset_id, "preparations")
        return self._transport.records(Preparation, path, {"limit": page_size})


class AsyncModelRuns(AsyncTasksWithFiles[ModelRun]):
    """`client.model_runs`: evaluations, embeddings and exports, which `client.checkpoints` requests."""

    _path, _record, _failed = "model-runs", ModelRun, ModelRunFailed
