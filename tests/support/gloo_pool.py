"""Pool of processes that act as the ranks of a gloo group and are reused by many tests."""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from dasl_core.standalone.ranks import leave_ranks

ANSWER_SECONDS = 120


class GlooPool:
    """Pool of `ranks` idle processes; `call` runs one function on the first few as a group."""

    def __init__(self, ranks: int) -> None:
        # Processes are forked from a server that has imported everything, so imports cost time only once.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["dasl_core.train.build", "pytorch_metric_learning.losses"]
        )
        self._folder = tempfile.TemporaryDirectory()
        self._calls = 0
        self._ranks = [self._start() for _ in range(ranks)]

    def call(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run `function(*arguments)` on `world` ranks; return the results, which may contain arrays.

        `function` must be importable: defined in a module, not inside a test. Arrays are numpy arrays.
        """
        self._calls += 1
        meeting = Path(self._folder.name) / str(self._calls)
        for rank, (_, pipe) in enumerate(self._ranks[:world]):
            pipe.send((function, arguments, rank, world, f"file://{meeting}"))
        # All answers are read before one fails the test: the next call must not find any of them.
        answers = [self._receive(rank) for rank in range(world)]
        for rank, (_, error) in enumerate(answers):
            assert error is None, f"rank {rank} of {world} failed:\n{error}"
        return [result for result, _ in answers]

    def _start(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _receive(self, rank: int) -> tuple[Any, str | None]:
        """Return a rank's result and error; replace a rank that died or does not answer."""
        process, pipe = self._ranks[rank]
        try:
            if pipe.poll(ANSWER_SECONDS):
                result, error = pipe.recv()
                return result, error
            problem = f"no answer in {ANSWER_SECONDS} s"
        except EOFError:
            problem = "its process died"
        process.kill()
        pipe.close()
        self._ranks[rank] = self._start()
        return None, problem

    def __enter__(self) -> GlooPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, pipe in self._ranks:
            pipe.close()  # this ends the process
        for process, _ in self._ranks:
            process.join(10)
            process.kill()
        self._folder.cleanup()


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what was imported
    while True:
        try:
            function, arguments, rank, world, meeting = pipe.recv()
        except EOFError:
            return
        try:
            if world > 1:
                _join(rank, world, meeting)
            pipe.send((function(*arguments), None))
        except Exception:  # noqa: BLE001 - the error is sent to the test
            pipe.send((None, traceback.format_exc()))
        # Else their threads, which look for work ten times a second, would stay to the end of all tests.
        leave_ranks()


def _join(rank: int, world: int, meeting: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=meeting,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=ANSWER_SECONDS / 2),
    )
    dist.barrier()  # a fast rank must not disconnect while another one is still connecting
