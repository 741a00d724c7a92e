"""What the measured processes do: ``python -m benchmarks.ingest.phases PHASE IMAGES WORK``.

Each prints lines of JSON: its progress while it works, and its figures at the end.
"""

import hashlib
import json
import resource
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

INDEX = "index.safetensors"
IMAGE_SIZE, BATCH_SIZE = 64, 8
_READ_AT_ONCE = 1024


def index(images: Path, work: Path) -> dict[str, Any]:
    """Ingest a folder as the service's worker does: it continues where a killed one was, and saves its index."""
    from dasl_core.data.ingest import ingest
    from workers.ingest_files import UnfinishedHeaders, load_previous

    reads = count(1)

    def tell(_read: int, _total: int, phase: str) -> None:
        if phase != "listing":
            _tell(progress=next(reads))

    unfinished = UnfinishedHeaders((work / "unfinished").as_uri())
    previous = load_previous(None, unfinished)
    result = ingest(
        str(images),
        on_progress=tell,
        previous=previous,
        on_headers=unfinished.save,
    )
    result.index.save(work / INDEX)
    unfinished.remove()
    made = result.index
    return {
        "images": len(made),
        "skipped": len(made.skipped),
        "headers_known": len(previous.headers),
    }


def prepare(images: Path, work: Path) -> dict[str, Any]:
    """Build the trainer of a run, which fills the image cache, and train one step with a tiny network."""
    from contextlib import closing

    from benchmarks import own_run
    from dasl_core.train.reporter import NullReporter

    class Progress(NullReporter):
        """Prints how many images are read."""

        def progress(self, progress: dict[str, Any]) -> None:
            """Print it while images are read."""
            if "images_read" in progress:
                _tell(progress=progress["images_read"])

    began = time.perf_counter()
    trainer = _trainer(work, Progress())
    filled = time.perf_counter() - began
    _tell(filled=True)  # what the step takes is no memory of the preparation
    try:
        with closing(own_run.batches(trainer, 1)) as batches:
            trainer.step(next(batches))
    finally:
        trainer.close()
    return {"seconds_of_cache": round(filled, 2)}


def digest(images: Path, work: Path) -> dict[str, Any]:
    """Return digests of the index and of all canvases, and which of the images are missing or listed twice."""
    from dasl_core.data.index import DatasetIndex

    paths = [str(path) for path in DatasetIndex.load(work / INDEX).paths]
    files = {str(path.relative_to(images)) for path in images.rglob("*.jpg")}
    trainer = _trainer(work, None)
    try:
        canvases = trainer.loader.canvases
        content = hashlib.blake2b(digest_size=16)
        for first in range(0, len(paths), _READ_AT_ONCE):
            positions = np.arange(first, min(first + _READ_AT_ONCE, len(paths)))
            for tensor in canvases.read(positions):
                content.update(np.ascontiguousarray(tensor.numpy()).data)
        unreadable = len(canvases.unreadable)
    finally:
        trainer.close()
    return {
        "index": hashlib.blake2b((work / INDEX).read_bytes(), digest_size=16).hexdigest(),
        "canvases": content.hexdigest(),
        "lost": len(files - set(paths)) + unreadable,
        "twice": len(paths) - len(set(paths)),
    }


PHASES: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "index": index,
    "prepare": prepare,
    "digest": digest,
}


def main() -> None:
    """Run a phase, and print its figures."""
    name, images, work = sys.argv[1:]
    began = time.perf_counter()
    figures = PHASES[name](Path(images), Path(work))
    own, children = (
        resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    processor = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    seconds = time.perf_counter() - began
    _tell(
        figures={"seconds": round(seconds, 2), "processor_seconds": round(processor, 2)} | figures
    )


def _trainer(work: Path, reporter: Any) -> Any:
    import torch

    from benchmarks import own_run
    from dasl_core.data.index import DatasetIndex
    from dasl_core.machine import usable_cores

    settings: dict[str, Any] = {
        "backbone": {"name": "test_resnet", "image_size": IMAGE_SIZE},
        "method": {"name": "simclr"},
        # Few, so that the step takes little memory beside the cache.
        "train": {"batch_size": BATCH_SIZE},
    }
    return own_run.build(
        settings,
        DatasetIndex.load(work / INDEX),
        work,
        device=torch.device("cpu"),
        threads=usable_cores(),
        reporter=reporter,
    )


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
