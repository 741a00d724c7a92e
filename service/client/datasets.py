"""Data sets: folders of images that the service's machines can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from service.client.errors import DatasetFailed
from service.client.models import Dataset
from service.client.pages import pages
from service.client.transport import Transport, path_to
from service.client.waiting import OUTAGE_SECONDS, wait_until


class Datasets:
    """`client.datasets`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add(self, path: str | os.PathLike[str], name: str) -> Dataset:
        """Register a folder under a name. Ingest goes on by itself; `.wait()` waits for it.

        `path` is as the service's machines see it: an absolute path or a `file://` URI; a relative
        path is taken from this process's folder.
        """
        uri = os.fspath(path)
        if "://" not in uri:
            uri = os.path.abspath(os.path.expanduser(uri))
        return self._bind(
            self._transport.json("POST", path_to("datasets"), body={"name": name, "uri": uri})
        )

    def get(self, dataset: str) -> Dataset:
        """A data set by id or name. Raises ApiError (404) when there is none."""
        if not dataset.startswith("ds_"):
            for named in self.list(name=dataset, page_size=1):
                return named
        return self._look(dataset)

    def list(self, *, name: str | None = None, page_size: int = 100) -> Iterator[Dataset]:
        """All data sets, newest first, or the one of a name."""
        params = {"name": name, "limit": page_size}
        for item in pages(self._transport, path_to("datasets"), params):
            yield self._bind(item)

    def delete(self, dataset_id: str) -> None:
        """Forget a data set. The images themselves are never touched.

        Raises ApiError (409) while a job that has not ended uses it.
        """
        self._transport.json("DELETE", path_to("datasets", dataset_id))

    def wait(self, dataset_id: str, *, timeout: float | None = None, poll: float = 0.5) -> Dataset:
        """Wait until ingest has ended. Raises DatasetFailed and WaitTimeout."""
        ended = wait_until(
            lambda: self._look(dataset_id, patience=OUTAGE_SECONDS),
            lambda seen: seen.done,
            timeout=timeout,
            poll=poll,
            what=f"Ingest of {dataset_id}",
        )
        if ended.state == "failed":
            raise DatasetFailed(ended)
        return ended

    def _look(self, dataset_id: str, patience: float | None = None) -> Dataset:
        return self._bind(
            self._transport.json("GET", path_to("datasets", dataset_id), patience=patience)
        )

    def _bind(self, answer: Any) -> Dataset:
        dataset = Dataset.model_validate(answer)
        dataset._datasets = self
        return dataset
