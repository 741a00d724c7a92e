"""A process for each contender, so that none finds the threads and the memory of another one."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from benchmarks.data.contenders import Case, contenders
from benchmarks.processor_time import processor_seconds

# Imported once, by the process from which all others are forked.
PRELOADED = [
    "benchmarks.data.processes",
    "kornia",
    "lightly.transforms",
    "torchvision.transforms.v2",
]


@dataclass(frozen=True)
class Running:
    """A contender in its own process."""

    name: str
    pipe: Connection

    def epoch(self) -> tuple[float, float]:
        """Run an epoch; return milliseconds of processor time an image, and images per second."""
        self.pipe.send("epoch")
        processor_ms, rate = self.pipe.recv()
        return processor_ms, rate


@contextmanager
def started(name: str, case: Case) -> Iterator[Running]:
    """Run the process of a contender until the end of the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, name, case))
    process.start()
    theirs.close()  # if the process ends, `recv` raises EOFError instead of waiting
    try:
        yield Running(name, ours)
    finally:
        ours.close()
        process.join()


def serve(pipe: Connection, name: str, case: Case) -> None:
    """Run an epoch at each message, until the other end is closed."""
    torch.set_num_threads(case.workers)
    contender = contenders(case)[name](case)
    try:
        while True:
            pipe.recv()
            pipe.send(timed(contender.epoch))
    except EOFError:
        pass
    finally:
        contender.close()


def timed(epoch: Callable[[], int]) -> tuple[float, float]:
    """Return milliseconds of processor time an image, and images per second, of an epoch."""
    processor, began = processor_seconds(), time.perf_counter()
    images = epoch()
    seconds = time.perf_counter() - began
    return 1000 * (processor_seconds() - processor) / images, images / seconds
