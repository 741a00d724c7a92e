"""Speed of embeddings against the evaluations of training, and of the search for neighbors.

    python -m benchmarks.embed --images 100000

Both read the same images from the same cache with the same network in the same precision; the embedding writes its file
besides. They take turns, and the best of the rounds counts. Memory is without mapped files, the cache, whose pages the
system takes back when it needs them. Neighbors are those of images of the embedding, and of image files, as
the process of a search finds them.
"""

import argparse
import base64
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.images import write_jpegs
from benchmarks.machine import machine, write_results
from benchmarks.memory import anonymous_bytes
from dasl_core.data.canvases import Canvases
from dasl_core.data.image_set import ImageSet
from dasl_core.data.ingest import ingest_folder
from dasl_core.embedding import FeatureBatch, ImagesWithFeatures, load_backbone, write_parts
from dasl_core.export import export_backbone
from dasl_core.machine import usable_cores
from dasl_core.methods import build_method
from dasl_core.spec import JobSpec, resolve
from dasl_core.train.features import ImageEncoder, eval_mode
from service.protocol import Query, SearchStart
from service.wire.checkpoints import FileEntry
from workers.artifacts import upload
from workers.search import Search

DISTINCT = 2000
QUESTIONS = 20
SPEC = {
    "dataset": "photographs",
    "method": {"name": "simclr"},
    "backbone": {"name": "resnet18", "image_size": 32, "stem": "standard"},
}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(count: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Measure with this many images below a folder."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(usable_cores())
    files = write_jpegs(
        folder / "images", count, 64, 48, distinct=min(count, DISTINCT), processes=usable_cores()
    )
    index = ingest_folder(folder / "images")
    spec = resolve(JobSpec.model_validate(SPEC), index.facts())
    network = build_method(spec, None).representation.eval()
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    export_backbone(
        network, spec, {"step": 1, "epoch": 1, "evaluations": [], "losses": []}, checkpoint
    )
    network.to(device)
    if spec.train.channels_last:  # as in training
        network.to(memory_format=torch.channels_last)
    images = ImagesWithFeatures(
        load_backbone(checkpoint, device), index, cache=folder / "cache", threads=usable_cores()
    )
    canvases = Canvases(
        index,
        spec.backbone.image_size,
        spec.backbone.in_channels,
        cache=folder / "cache",
        threads=usable_cores(),
        form=spec.train.image_cache,
    )
    encoder, held_out = ImageEncoder(spec, device), ImageSet(canvases, np.arange(len(index)))
    parts = folder / "parts"
    parts.mkdir()
    written: list[Path] = []

    peak = 0

    def batches() -> Iterator[FeatureBatch]:
        nonlocal peak
        for batch in images.batches():
            yield batch
            peak = max(peak, anonymous_bytes())

    def embed() -> None:
        written[:] = write_parts(batches(), parts, "parquet")

    def evaluate() -> None:
        with eval_mode(network):
            encoder.features(network, held_out)

    # The embedding first: its peak is not that of the table of all features.
    before = anonymous_bytes()
    times: dict[str, list[float]] = {"embedding": [_seconds(embed)], "evaluation": []}
    grown = peak - before
    times["evaluation"].append(_seconds(evaluate))
    for _ in range(rounds - 1):
        times["embedding"].append(_seconds(embed))
        times["evaluation"].append(_seconds(evaluate))
    rates = {name: round(len(index) / min(each), 1) for name, each in times.items()}
    size = sum(file.stat().st_size for file in written)
    images.close()
    canvases.close()
    return {
        "images": len(index),
        "device": device.type,
        "images_per_second": rates,
        "embedding_of_evaluation": round(rates["embedding"] / rates["evaluation"], 3),
        "seconds": {name: [round(each, 2) for each in runs] for name, runs in times.items()},
        "file_bytes": size,
        "memory_grew_by_bytes": grown,
        "neighbors": _neighbors(written, checkpoint, index.facts().model_dump(), files, folder),
    }


def _neighbors(
    parts: list[Path], checkpoint: Path, facts: dict[str, Any], files: list[Path], folder: Path
) -> dict[str, Any]:
    """Measure questions to the search of the embedding in these parts."""
    store = f"file://{folder}/store"

    def stored(sources: list[Path], name: str) -> dict[str, Any]:
        entries: list[FileEntry] = [upload(each, f"{store}/{name}/{each.name}") for each in sources]
        return {"uri": f"{store}/{name}", "files": [entry.model_dump() for entry in entries]}

    start = SearchStart.model_validate(
        {
            "embedding": stored(parts, "embedding"),
            "settings": {},
            "checkpoint": stored(sorted(checkpoint.iterdir()), "checkpoint"),
            "facts": facts,
        }
    )
    scratch = folder / "search"
    scratch.mkdir()
    began = time.perf_counter()
    search = Search(start, scratch)
    opened = time.perf_counter() - began
    by_key = [Query(id="1", key=key, k=10) for key in search.index.keys[:QUESTIONS]]
    contents = [base64.b64encode(file.read_bytes()).decode() for file in files[:QUESTIONS]]
    by_file = [Query(id="1", image=content, k=10) for content in contents]
    first = _seconds(lambda: search.answer(by_file[0]))

    def milliseconds(queries: list[Query]) -> dict[str, float]:
        taken = [1000 * _seconds(lambda each=query: search.answer(each)) for query in queries]  # type: ignore[misc]
        return {"median": round(statistics.median(taken), 1), "most": round(max(taken), 1)}

    return {
        "open_seconds": round(opened, 2),
        "first_file_seconds": round(first, 2),
        "key_ms": milliseconds(by_key),
        "file_ms": milliseconds(by_file),
    }


def main() -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/embed.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dasl-embed-") as name:
        result = measure(options.images, options.rounds, Path(name))
    write_results(options.output, {"machine": machine("torch", "timm", "pyarrow"), **result})
    print(options.output.read_text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
