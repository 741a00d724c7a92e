"""Is learning real? ``python -m benchmarks.learning``.

Every method on real images, three seeds each, against two baselines measured in the same run: raw
pixels and the untrained network.

* ``emoji``: the emoji of `examples/`, half of the classes held out, zero-shot R@1.
* ``fashion``: 10,000 training images of Fashion-MNIST, k-NN on 2,000 of its test images, with the labels
  of ten images of each class and with all 10,000. Not shipped: ``--fashion`` names the folder with its
  four files (Debian: dataset-fashion-mnist). Pretraining is for those who have images and few labels, so
  the first figure is the one that must beat both baselines; aligned, centred pixels with a thousand
  labels of each class are hard to beat with 96 features, and the table says by how much they are or not.

A run is a process with one thread; ``--side-by-side`` of them at a time. Finished runs are kept in the
results file and not repeated.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from examples.emoji import unpack_emoji

RESULTS = Path(__file__).parent / "results" / "learning.json"
FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian puts it
FASHION_TRAIN, FASHION_TEST = 10_000, 2_000
STEP_FIGURES = ("loss", "dar", "sec", "embedding_norm", "embedding_norm_std", "angular_update")
METRICS = {"emoji": "recall_at_1", "fashion": "knn_top1"}
FEW, DRAWS, NEIGHBOURS = 10, 20, 5  # labels of each class, draws of them, who votes among so few

# What all runs on a data set share. Emoji are centred, upright and small, so views are milder than the
# default: no flips and few crops, or the layout that tells one emoji from another would be trained away.
# There are 2,600 of them to train on, so batches are small: what counts is the number of steps.
COMMON: dict[str, dict[str, Any]] = {
    "emoji": {
        "backbone": {"name": "test_resnet", "image_size": 64, "stem": "standard"},
        "augment": {"crop_scale": [0.7, 1.0], "flip": 0.0, "jitter": 0.5, "grayscale": 0.1},
        "train": {
            "epochs": 20,
            "batch_size": 32,
            "precision": "bf16",
            "optimizer": {"name": "adamw", "lr": 0.003},
        },
        "evaluate": {
            "holdout": {"fraction": 0.5, "by": "class"},
            "knn": None,
            "retrieval": [1],
        },
    },
    "fashion": {
        "backbone": {
            "name": "test_resnet",
            "image_size": 32,
            "in_channels": 1,
            "stem": "standard",
        },
        "augment": {"crop_scale": [0.1, 1.0], "flip": 0.5, "jitter": 1.0},
        "train": {
            "epochs": 20,
            "batch_size": 64,
            "precision": "bf16",
            "optimizer": {"name": "sgd", "lr": 0.2},
        },
        "evaluate": {"dataset": "test", "retrieval": []},
    },
}

# Without negatives, or with few prototypes, images drift apart more slowly: more epochs, and SGD, with
# which they went further in each.
LONGER = {
    "emoji": {"epochs": 80, "optimizer": {"name": "sgd", "lr": 0.1}},
    "fashion": {"epochs": 60},
}
# What a method changes of it: settings for minutes on one core, not those of its paper. Local crops of so
# small images show next to nothing.
METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"method": {"temperature": 0.07}},
    "simclr+dar": {
        "method": {"temperature": 0.07},
        "dar": {"weight": 1.0, "difference": "distance"},
    },
    "simclr+sec": {"method": {"temperature": 0.07}, "sec": {"weight": 0.1}},
    "byol": {"method": {"hidden_dim": 256, "projection_dim": 128}, "train": LONGER},
    # Its targets become sharp late: a wide output, a teacher that follows fast, and most epochs of all.
    "dino": {
        "method": {
            "local_crops": 0,
            "head_batch_norm": True,
            "out_dim": 8192,
            "teacher_momentum": 0.99,
        },
        "train": {
            "emoji": {
                "epochs": 120,
                "optimizer": {
                    "name": "adamw",
                    "lr": 0.001,
                    "weight_decay": 0.0001,
                    "weight_decay_end": 0.0001,
                },
            },
            "fashion": {"epochs": 60},
        },
    },
    "swav": {"method": {"local_crops": 0}, "train": LONGER},
    "npair": {},
    # Proxies learn from a class's images together: more of them in a batch.
    "proxy_anchor": {"train": {"emoji": {"batch_size": 64, "epochs": 30}}},
}
SUPERVISED = ("npair", "proxy_anchor")


def main() -> int:
    """Run what is missing, print a table; 1 when a method does not beat both baselines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--datasets", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--fashion", type=Path, default=FASHION)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dasl-learning-") as name:
        folder = Path(name)
        specs = {}
        for dataset in arguments.datasets:
            if dataset == "emoji":
                unpack_emoji(folder)
            else:
                unpack_fashion(arguments.fashion, folder)
            for seed in range(arguments.seeds):
                for method in arguments.methods:
                    if dataset == "fashion" and method in SUPERVISED:
                        continue  # zero-shot is what they are for
                    specs[f"{dataset}/{method}/{seed}"] = spec_of(dataset, method, seed)
        return show(run_missing(specs, folder, arguments.output, arguments.side_by_side))


def run_missing(
    specs: dict[str, dict[str, Any]], folder: Path, output: Path, side_by_side: int
) -> dict[str, Any]:
    """Run each spec that `output` has no result of, and write each result there as it comes.

    Args:
        specs: by a name that starts with the data set's and a slash.
        folder: where the data sets are.
        side_by_side: processes, of one thread each.

    Returns:
        The results of all runs in the file, by name.
    """
    kept: dict[str, Any] = {"runs": {}}
    if output.exists():
        kept = json.loads(output.read_text())
    missing = {
        key: spec for key, spec in specs.items() if kept["runs"].get(key, {}).get("spec") != spec
    }
    context = get_context("spawn")
    with ProcessPoolExecutor(side_by_side, mp_context=context) as pool:
        runs = {
            pool.submit(run, folder, key.partition("/")[0], spec): key
            for key, spec in missing.items()
        }
        for done in as_completed(runs):
            key = runs[done]
            kept["runs"][key] = done.result()
            print(key, kept["runs"][key]["figures"], flush=True)
            kept["machine"] = machine("torch", "timm")
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(kept, indent=2) + "\n")
    return dict(kept["runs"])


def spec_of(dataset: str, method: str, seed: int) -> dict[str, Any]:
    """The spec of one run."""
    spec = json.loads(json.dumps(COMMON[dataset]))
    changes = METHODS[method]
    spec |= {"name": f"{dataset}-{method}-{seed}", "dataset": dataset}
    spec["method"] = {"name": method.partition("+")[0]} | changes.get("method", {})
    for part in ("dar", "sec"):
        if part in changes:
            spec[part] = changes[part]
    spec["train"] |= changes.get("train", {}).get(dataset, {})
    spec["train"] |= {"seed": seed, "collapse": "ignore", "checkpoint_every_epochs": 10_000}
    spec["evaluate"]["every_epochs"] = spec["train"]["epochs"]
    return dict(spec)


def run(folder: Path, dataset: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train and evaluate in this process.

    Returns:
        The spec, the figure of each subject, the mean of each figure of its steps, and the seconds it took.
    """
    from dasl_core.data.ingest import ingest_folder
    from dasl_core.models.backbone import build_backbone
    from dasl_core.spec import JobSpec, resolve
    from dasl_core.train.build import RunFiles, pretrain

    index = ingest_folder(folder / dataset)
    test = ingest_folder(folder / "test") if "dataset" in settings["evaluate"] else None
    spec = resolve(JobSpec.model_validate(settings), index.facts())
    figures = Figures(METRICS[dataset])
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        files = RunFiles(cache=folder / f"cache-{dataset}", scratch=Path(scratch))
        pretrain(spec, index, figures, files, evaluate_on=test)
    seconds = round(time.monotonic() - began)
    few = {}
    if dataset == "fashion":
        assert isinstance(spec.backbone.image_size, int), "the spec is resolved"
        untrained, trained = build_backbone(spec.backbone), build_backbone(spec.backbone)
        trained.load_state_dict(figures.weights)
        for subject, network in (("raw", None), ("untrained", untrained), ("backbone", trained)):
            few[subject] = few_labels(network, folder, spec.backbone.image_size)
    return {
        "spec": settings,
        "figures": figures.subjects,
        "few_labels": few,
        "steps": {
            name: round(statistics.mean(values), 5)
            for name, values in figures.steps.items()
            if values
        },
        "seconds": seconds,
    }


def few_labels(network: Any, folder: Path, side: int) -> float:
    """k-NN accuracy on the test images with the labels of `FEW` training images of each class.

    Args:
        network: from normalised images (B, 1, side, side) to features; None for the pixels.
        folder: with the folders of `unpack_fashion`.
        side: pixels.

    Returns:
        The mean over `DRAWS` draws of these images, the same ones for all networks.
    """
    import torch

    from dasl_core.data.augment import statistics as mean_and_std
    from dasl_core.evaluate import knn_accuracy

    (mean,), (std,) = mean_and_std(1)
    features, labels = {}, {}
    for part in ("fashion", "test"):
        files = sorted((folder / part).glob("*/*.png"))
        labels[part] = torch.tensor([int(file.parent.name) for file in files])
        pixels = torch.from_numpy(np.stack([np.asarray(Image.open(file)) for file in files]))
        images = pixels[:, None] / 255
        if network is None:
            features[part] = images.flatten(1)
            continue
        network.eval()
        with torch.no_grad():
            features[part] = torch.cat(
                [
                    network(
                        (torch.nn.functional.interpolate(some, side, mode="bilinear") - mean) / std
                    )
                    for some in torch.split(images, 500)
                ]
            )
    accuracies = []
    for draw in range(DRAWS):
        shuffled = torch.randperm(
            len(labels["fashion"]), generator=torch.Generator().manual_seed(draw)
        )
        known = torch.cat(
            [shuffled[labels["fashion"][shuffled] == label][:FEW] for label in range(10)]
        )
        accuracies.append(
            knn_accuracy(
                features["fashion"][known],
                labels["fashion"][known],
                features["test"],
                labels["test"],
                k=NEIGHBOURS,
            )
        )
    return round(statistics.mean(accuracies), 4)


class Figures:
    """A `Reporter` that keeps one metric of each subject, and what the steps tell."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.weights: dict[str, Any] = {}
        self.subjects: dict[str, float] = {}
        self.steps: dict[str, list[float]] = {name: [] for name in STEP_FIGURES}

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Those of `STEP_FIGURES`; not every step has each."""
        for point in points:
            for name, values in self.steps.items():
                if name in point["values"]:
                    values.append(point["values"][name])

    def progress(self, progress: dict[str, Any]) -> None:
        """Not kept."""

    def phase(self, name: str, message: str) -> None:
        """Not kept."""

    def keepalive(self) -> None:
        """Not kept."""

    def evaluation(self, step: int, epoch: float, subject: str, metrics: dict[str, float]) -> None:
        """The last one of a subject wins."""
        self.subjects[subject] = round(metrics[self.metric], 4)

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """The weights."""
        from safetensors.torch import load_file

        self.weights = load_file(folder / "backbone.safetensors")

    def artifact(self, file: Path) -> None:
        """Not kept."""

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        """Shown: a step that was left out, say, explains a figure."""
        print(f"{type}: {message}", file=sys.stderr)

    def desired(self) -> Any:
        """To its end."""
        return "run"


def unpack_fashion(source: Path, folder: Path) -> None:
    """The first images of Fashion-MNIST's training and test parts, as folders of classes.

    Raises:
        SystemExit: its files are not there.
    """
    for part, target, count in (
        ("train", "fashion", FASHION_TRAIN),
        ("t10k", "test", FASHION_TEST),
    ):
        images = idx(source, f"{part}-images-idx3-ubyte")[16:].reshape(-1, 28, 28)
        labels = idx(source, f"{part}-labels-idx1-ubyte")[8:]
        for number, (image, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
            into = folder / target / str(label)
            into.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(into / f"{number:05d}.png")


def idx(source: Path, name: str) -> np.ndarray:
    """The bytes of one of its files, compressed or not."""
    packed, plain = source / f"{name}.gz", source / name
    if packed.exists():
        return np.frombuffer(gzip.decompress(packed.read_bytes()), dtype=np.uint8)
    if plain.exists():
        return np.frombuffer(plain.read_bytes(), dtype=np.uint8)
    raise SystemExit(f"{plain} is not there: give --fashion DIR, or --datasets emoji")


def show(runs: dict[str, Any]) -> int:
    """A table for people; 1 when a method does not beat both baselines in the mean of its seeds."""
    table = Table(title="Mean of seeds (least to greatest); margin over the better baseline")
    for heading in (
        "figure",
        "method",
        "seeds",
        "raw",
        "untrained",
        "trained",
        "margin",
        "minutes",
    ):
        table.add_column(heading, justify="left" if heading in ("figure", "method") else "right")
    failed = 0
    for title, dataset, figures, judged in (
        ("emoji, zero-shot R@1", "emoji", "figures", True),
        (f"fashion, {FEW} labels a class", "fashion", "few_labels", True),
        (f"fashion, {FASHION_TRAIN:,} labels", "fashion", "figures", False),
    ):
        for method in METHODS:
            found = [
                run for key, run in runs.items() if key.rpartition("/")[0] == f"{dataset}/{method}"
            ]
            if not found:
                continue
            raw, untrained, trained = (
                [each[figures][subject] for each in found]
                for subject in ("raw", "untrained", "backbone")
            )
            margins = [t - max(r, u) for r, u, t in zip(raw, untrained, trained, strict=True)]
            failed |= judged and statistics.mean(margins) <= 0
            table.add_row(
                title,
                method,
                str(len(found)),
                f"{statistics.mean(raw):.3f}",
                f"{statistics.mean(untrained):.3f}",
                f"{statistics.mean(trained):.3f} ({min(trained):.3f} to {max(trained):.3f})",
                f"{statistics.mean(margins):+.3f}",
                f"{statistics.mean(each['seconds'] for each in found) / 60:.1f}",
            )
    Console(width=120).print(table)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
