"""Search among the images of one embedding: `python -m workers.search --run R --search SRCH`.

It keeps the vectors, and after the first image file the network, in memory, polls the API for queries, and answers
them. It ends after minutes without a query. Environment, token and exit code are as for `workers.ingest`.
"""

import argparse
import base64
import logging
import sys
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch

from dasl_core.embedding import FeatureBatch, NeighborIndex, QueryEncoder, load_backbone, read_parts
from dasl_core.machine import usable_cores
from dasl_core.spec import DatasetFacts
from service.client.worker import WorkerClient
from service.protocol import Query, QueryAnswer, SearchReport, SearchStart
from service.wire.model_runs import NeighborEntry
from workers.artifacts import download
from workers.failures import storable
from workers.task_process import run_task

logger = logging.getLogger("workers.search")

_CPU = torch.device("cpu")


class Search:
    """The images of an embedding, and the network that embeds others."""

    def __init__(self, start: SearchStart, folder: Path) -> None:
        """Fetch the embedding into a folder; a StoreError if the artifact store cannot be read."""
        self.start, self.folder = start, folder
        self.index = NeighborIndex(self._batches(), folder / "vectors")

    def _batches(self) -> Iterator[FeatureBatch]:
        for entry in self.start.embedding.files:
            download(self.start.embedding.uri, [entry], self.folder)
            yield from read_parts([self.folder / entry.name])
            (self.folder / entry.name).unlink()

    @cached_property
    def encoder(self) -> QueryEncoder:
        """Encoder of image files, loaded at the first one."""
        checkpoint = self.folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        download(self.start.checkpoint.uri, self.start.checkpoint.files, checkpoint)
        return QueryEncoder(
            load_backbone(checkpoint, _CPU),
            DatasetFacts.model_validate(self.start.facts),
            self.start.settings.features,
        )

    def answer(self, query: Query) -> QueryAnswer:
        """Return the neighbors for a query, or why there are none."""
        if query.key is not None:
            position = self.index.position(query.key)
            if position is None:
                return QueryAnswer(id=query.id, problem="is not an image of this embedding")
            vector = torch.from_numpy(self.index.vectors[position])
        else:
            assert query.image is not None, "a question has a key or an image"
            position = None
            try:
                vector = self.encoder.embed(base64.b64decode(query.image))
            except ValueError as error:
                return QueryAnswer(id=query.id, problem=storable(str(error)))
        neighbors = self.index.nearest(vector, query.k, without=position)
        entries = [NeighborEntry(**vars(neighbor)) for neighbor in neighbors]
        return QueryAnswer(id=query.id, neighbors=entries)


def _run(client: WorkerClient, _: argparse.Namespace) -> None:
    torch.set_num_threads(usable_cores())
    start = client.task_start(SearchStart)
    with tempfile.TemporaryDirectory(prefix="dasl-") as name:
        search = Search(start, Path(name))
        logger.info("%d images are searched", len(search.index.keys))
        answers: list[QueryAnswer] = []
        while not (questions := client.search_queries(answers)).stop:
            answers = [search.answer(query) for query in questions.queries]
    client.task_succeeded(SearchReport)


if __name__ == "__main__":
    sys.exit(run_task("search", SearchReport, _run))
