"""What the process of a training reports, from formulas."""

import math
from datetime import UTC, datetime
from io import BytesIO

import numpy as np
from PIL import Image

from service.client import WorkerClient

EPOCHS = 60
STEPS = 20
"""Of an epoch."""
FINAL_STEP = EPOCHS * STEPS


def train(
    worker: WorkerClient, last: int, random: np.random.Generator, gain: float
) -> dict[str, float]:
    """Report metrics, evaluations and progress up to a step; return what the last evaluation measured."""
    now = datetime.now(UTC).timestamp()
    measured: dict[str, float] = {}
    start = {"knn_top1": 0.286, "recall_at_1": 0.31, "effective_rank": 12.0}
    worker.evaluation(
        step=0, epoch=0, subject="raw", metrics={"knn_top1": 0.221, "recall_at_1": 0.25}
    )
    worker.evaluation(step=0, epoch=0, subject="untrained", metrics=start)
    points = []
    for step in range(10, last + 1, 10):
        done = step / FINAL_STEP
        loss = 1.2 + 2.8 * math.exp(-4 * done) + 0.06 * random.normal()
        values = {
            "loss": loss,
            "loss_simclr": loss * 0.94,
            "loss_dar": loss * 0.06,
            "lr": 0.5 * (1 + math.cos(math.pi * done)) * 0.06 * min(1, done * 10),
            "gradient_norm": 2.2 * math.exp(-done) + 0.2 * abs(random.normal()),
            "embedding_norm": 11 + 4 * done + 0.2 * random.normal(),
            "embedding_norm_min": 8 + 3 * done,
            "embedding_norm_max": 14 + 6 * done + 0.5 * random.normal(),
            "embedding_std": 0.086 - 0.01 * math.exp(-9 * done),
            "embedding_rank": 12 + 40 * (1 - math.exp(-3 * done)) + random.normal(),
            "images_per_second": 910 + 25 * random.normal(),
            "time_data_wait": 0.04 + 0.01 * abs(random.normal()),
            "time_forward": 0.31,
            "time_backward": 0.52,
            "cpu_utilization": 0.83 + 0.02 * random.normal(),
            "gpu_utilization": 0.94 + 0.01 * random.normal(),
            "memory": 2.1e9 + 1e7 * step,
        }
        points.append({"step": step, "time": now - (last - step) * 0.2, "values": values})
    worker.metrics(points)
    for epoch in range(5, last // STEPS + 1, 5):
        done = epoch / EPOCHS
        knn = 0.286 + (0.34 + gain) * (1 - math.exp(-2.6 * done)) + 0.006 * random.normal()
        measured = {
            "knn_top1": round(knn, 4),
            "recall_at_1": round(knn + 0.03, 4),
            "recall_at_5": round(min(1, knn + 0.2), 4),
            "effective_rank": 12 + 44 * (1 - math.exp(-3 * done)),
            "alignment": 0.9 - 0.4 * done,
            "uniformity": -1.2 - 1.9 * done,
        }
        worker.evaluation(step=epoch * STEPS, epoch=epoch, subject="backbone", metrics=measured)
    progress = {
        "step": last,
        "total_steps": FINAL_STEP,
        "epoch": last / STEPS,
        "epochs": EPOCHS,
        "loss": round(loss, 4),
        "images_per_second": 912.0,
        "eta_seconds": (FINAL_STEP - last) * 0.2,
        "knn": measured.get("knn_top1"),
        "recall_at_1": measured.get("recall_at_1"),
        "times": {"data_wait": 0.04, "forward": 0.31, "backward": 0.52},
    }
    worker.heartbeat({name: value for name, value in progress.items() if value is not None})
    return measured


def picture(seed: int) -> bytes:
    """Return a PNG of a curve."""
    random = np.random.default_rng(seed)
    pixels = np.full((240, 420, 3), 250, np.uint8)
    heights = (190 - 150 * (1 - np.exp(-np.arange(420) / 120)) + random.normal(0, 3, 420)).astype(
        int
    )
    pixels[heights, np.arange(420)] = (47, 75, 184)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
