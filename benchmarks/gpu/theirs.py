"""lightly's parts: its transforms in a DataLoader, and its step on the same network."""

import multiprocessing
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.gpu.own import Bench, speed
from benchmarks.gpu.timing import Limit
from benchmarks.memory import peak_bytes, synchronize

Step = Callable[[list[Tensor]], None]


class Images(Dataset[Any]):
    """Files, decoded by Pillow and transformed."""

    def __init__(self, paths: list[Path], transform: Callable[[Image.Image], Any]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        with Image.open(self.paths[number]) as image:
            return self.transform(image.convert("RGB"))


def transform(bench: Bench) -> Callable[[Image.Image], Any]:
    """Return lightly's transform with its defaults, but for the number of local crops."""
    from lightly.transforms import DINOTransform, SimCLRTransform

    scenario = bench.scenario
    made: Callable[[Image.Image], Any]
    if scenario.method == "simclr":
        made = SimCLRTransform(input_size=scenario.image_size)
    else:
        made = DINOTransform(
            global_crop_size=scenario.image_size,
            local_crop_size=scenario.local_size,
            n_local_views=scenario.local_crops,
        )
    return made


def step(bench: Bench) -> Step:
    """Return lightly's step: its head and loss, with the optimizer of ours."""
    from benchmarks import lightly_steps

    scenario, on_gpu = bench.scenario, bench.device.type == "cuda"
    optimizer: Callable[..., torch.optim.Optimizer]
    if scenario.method == "simclr":
        optimizer = partial(torch.optim.SGD, lr=0.06, momentum=0.9, weight_decay=5e-4, fused=on_gpu)
    else:
        optimizer = partial(torch.optim.AdamW, lr=5e-4, weight_decay=0.04, fused=on_gpu)
    return lightly_steps.STEPS[scenario.method](
        lightly_steps.Setup(
            backbone=scenario.backbone,
            image_size=scenario.image_size,
            device=bench.device,
            half=on_gpu,
            channels_last=scenario.method == "simclr",
            optimizer=optimizer,
            dino_head=scenario.dino_head,
        )
    )


def views_loader(bench: Bench, workers: int) -> DataLoader[Any]:
    """Return the DataLoader of views; 0 workers: it makes them in this process.

    Workers are forked from a server process that has imported what they need. This process may have used a
    GPU, and then should not fork.
    """
    if workers:
        multiprocessing.set_forkserver_preload(["benchmarks.gpu.theirs", "lightly.transforms"])
    return DataLoader(
        Images(bench.images, transform(bench)),
        bench.scenario.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        multiprocessing_context="forkserver" if workers else None,
        persistent_workers=workers > 0,
        pin_memory=bench.device.type == "cuda",
    )


def batches(bench: Bench) -> Generator[list[Tensor], None, None]:
    """Yield views without end, on a machine with a GPU from a worker for each core."""
    loader = views_loader(bench, bench.cores if bench.device.type == "cuda" else 0)
    while True:
        yield from loader


def train(bench: Bench, limit: Limit) -> dict[str, Any]:
    """Train with lightly's transforms and step."""
    device = bench.device
    peak_bytes(device, reset=True)
    run = step(bench)
    done, began, waited = 0, 0.0, 0.0
    layout = torch.channels_last if bench.scenario.method == "simclr" else torch.contiguous_format
    with closing(batches(bench)) as views_of:
        for number in range(bench.warmup + bench.steps):
            if number == bench.warmup:
                synchronize(device)
                began, waited = time.perf_counter(), 0.0
            if not limit.allows():
                limit.cut.append(f"{done} of {bench.steps} steps")
                break
            asked = time.perf_counter()
            views = next(views_of)
            waited += time.perf_counter() - asked
            run([view.to(device, memory_format=layout, non_blocking=True) for view in views])
            done = max(0, number + 1 - bench.warmup)
        synchronize(device)
        seconds = time.perf_counter() - began
    if not done:
        return {}
    return speed(bench, seconds / done) | {
        "steps": done,
        "data_wait_share": waited / seconds,
        "peak_bytes": peak_bytes(device),
    }
