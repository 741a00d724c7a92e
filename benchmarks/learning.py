"""Does training improve the representation? ``python -m benchmarks.learning``.

Trains every method on real images with three seeds and compares it with two baselines from the same
run: raw pixels and the untrained network.

* ``emoji``: the emoji of `examples/`, half of the classes held out, zero-shot R@1.
* ``fashion``: 10,000 training images of Fashion-MNIST, k-NN on 2,000 of its test images, with the labels
  of ten images of each class and with all 10,000. Not included: ``--fashion`` names the folder with its
  four files (Debian: dataset-fashion-mnist). Pretraining is meant for many images with few labels, so the
  first metric must beat both baselines. Aligned, centered pixels with a thousand labels of each class are
  hard to beat with 96 features; the table shows that margin as well.

Each run is a process with one thread; ``--side-by-side`` sets how many run at a time. The results file
keeps finished runs, which are not repeated.
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, write_results
from dasl_core.train.reporter import NullReporter
from dasl_core.vocabulary import Subject
from examples.emoji import unpack_emoji

RESULTS = Path(__file__).parent / "results" / "learning.json"
FASHION = Path("/usr/share/datasets/fashion-mnist")  # Debian's location
FASHION_TRAIN, FASHION_TEST = 10_000, 2_000
STEP_METRICS = ("loss", "dar", "sec", "embedding_norm", "embedding_norm_std", "angular_update")
METRICS = {"emoji": "recall_at_1", "fashion": "knn_top1", "fonts": "recall_at_1"}
FEW, DRAWS, NEIGHBORS = 10, 20, 5  # labels per class, draws of them, voting neighbors

# Settings that all runs on a data set share. Emoji are centered, upright and small, so views are milder
# than the default: flips and strong crops would remove the layout that distinguishes emoji. There are
# only 2,600 training images, so batches are small to get enough steps.
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

# Without negatives, or with few prototypes, images separate more slowly: more epochs, and SGD, which
# separated them further in each epoch.
LONGER = {
    "emoji": {"epochs": 80, "optimizer": {"name": "sgd", "lr": 0.1}},
    "fashion": {"epochs": 60},
}
# Settings that differ by method: for minutes on one core, not those of the paper. Local crops of such
# small images show almost nothing.
METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"method": {"temperature": 0.07}},
    "simclr+dar": {
        "method": {"temperature": 0.07},
        "dar": {"weight": 1.0, "difference": "distance"},
    },
    "simclr+sec": {"method": {"temperature": 0.07}, "sec": {"weight": 0.1}},
    "byol": {"method": {"hidden_dim": 256, "projection_dim": 128}, "train": LONGER},
    # DINO's targets become sharp late: a wide output, a fast teacher, and the most epochs.
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
    # Proxies learn from several images of a class: larger batches.
    "proxy_anchor": {"train": {"emoji": {"batch_size": 64, "epochs": 30}}},
}
SUPERVISED = ("npair", "proxy_anchor")


def main() -> int:
    """Run what is missing and print a table; return 1 if a method does not beat both baselines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--datasets", nargs="+", choices=COMMON, default=list(COMMON))
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
                        continue  # these methods are for zero-shot retrieval
                    specs[f"{dataset}/{method}/{seed}"] = spec_of(dataset, method, seed)
        return show(run_missing(specs, folder, arguments.output, arguments.side_by_side))


def run_missing(
    specs: dict[str, dict[str, Any]],
    folder: Path,
    output: Path,
    side_by_side: int,
    metrics: tuple[str, ...] = (),
    train: Callable[..., dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Run each spec without a result in `output`, and write each result there as it arrives.

    Args:
        specs: by name, which starts with the data set's name and a slash.
        folder: contains the data sets.
        side_by_side: number of processes with one thread each.
        metrics: kept of each subject's last evaluation, besides the data set's own metric.
        train: trains one spec, with the arguments of `run`, the default.

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
            pool.submit(train or run, folder, key.partition("/")[0], spec, metrics): key
            for key, spec in missing.items()
        }
        for done in as_completed(runs):
            key = runs[done]
            kept["runs"][key] = done.result()
            print(key, kept["runs"][key]["figures"], flush=True)
            kept["machine"] = machine("torch", "timm")
            write_results(output, kept)
    return dict(kept["runs"])


def spec_of(dataset: str, method: str, seed: int) -> dict[str, Any]:
    """Return the spec of one run."""
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


def run(
    folder: Path, dataset: str, settings: dict[str, Any], metrics: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Train and evaluate in this process.

    Returns:
        The spec, the data set's metric of each subject, its other `metrics`, the mean of each step metric,
        and the duration in seconds.
    """
    from dasl_core.data.ingest import ingest_folder
    from dasl_core.models.backbone import build_backbone
    from dasl_core.spec import JobSpec, resolve
    from dasl_core.train.build import RunFiles, pretrain

    index = ingest_folder(folder / dataset)
    other = settings["evaluate"].get("dataset")
    test = ingest_folder(folder / other) if other else None
    spec = resolve(JobSpec.model_validate(settings), index.facts())
    recorder = MetricRecorder(METRICS[dataset], metrics)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        files = RunFiles(
            cache=folder / f"cache-{dataset}",
            evaluate_cache=folder / "cache-test",
            scratch=Path(scratch),
        )
        pretrain(spec, index, recorder, files, evaluate_on=test)
    seconds = round(time.monotonic() - began)
    few = {}
    if dataset == "fashion":
        assert isinstance(spec.backbone.image_size, int), "the spec is resolved"
        untrained, trained = build_backbone(spec.backbone), build_backbone(spec.backbone)
        trained.load_state_dict(recorder.weights)
        for subject, network in (("raw", None), ("untrained", untrained), ("backbone", trained)):
            few[subject] = few_labels(network, folder, spec.backbone.image_size)
    return {
        "spec": settings,
        "figures": recorder.subjects,
        "metrics": recorder.others,
        "few_labels": few,
        "steps": {
            name: round(statistics.mean(values), 5)
            for name, values in recorder.steps.items()
            if values
        },
        "seconds": seconds,
    }


def few_labels(network: Any, folder: Path, side: int) -> float:
    """Compute k-NN accuracy on the test images with the labels of `FEW` training images per class.

    Args:
        network: maps normalized images (B, 1, side, side) to features; None for raw pixels.
        folder: as written by `unpack_fashion`.
        side: image size in pixels.

    Returns:
        The mean over `DRAWS` draws of these images, which are the same for all networks.
    """
    import torch

    from dasl_core.evaluate import knn_accuracy
    from dasl_core.spec.normalization import IMAGENET

    gray = IMAGENET.with_channels(1)
    (mean,), (std,) = gray.mean, gray.std
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
        labeled = torch.cat(
            [shuffled[labels["fashion"][shuffled] == label][:FEW] for label in range(10)]
        )
        accuracies.append(
            knn_accuracy(
                features["fashion"][labeled],
                labels["fashion"][labeled],
                features["test"],
                labels["test"],
                k=NEIGHBORS,
            )
        )
    return round(statistics.mean(accuracies), 4)


class MetricRecorder(NullReporter):
    """Keeps one metric of each subject and named others, and the metrics of the steps."""

    def __init__(self, metric: str, names: tuple[str, ...] = ()) -> None:
        self.metric, self.names = metric, names
        self.weights: dict[str, Any] = {}
        self.subjects: dict[str, float] = {}
        self.others: dict[str, dict[str, float]] = {}
        self.steps: dict[str, list[float]] = {name: [] for name in STEP_METRICS}

    def metrics(self, points: list[dict[str, Any]]) -> None:
        """Keep the `STEP_METRICS` that a step has."""
        for point in points:
            for name, values in self.steps.items():
                if name in point["values"]:
                    values.append(point["values"][name])

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        """Keep the last values of each subject."""
        self.subjects[subject] = round(metrics[self.metric], 4)
        kept = {name: round(metrics[name], 5) for name in self.names if name in metrics}
        if kept:
            self.others[subject] = kept

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """Keep the weights."""
        from safetensors.torch import load_file

        self.weights = load_file(folder / "backbone.safetensors")

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        """Print events: a skipped step, for example, explains a result."""
        print(f"{type}: {message}", file=sys.stderr)


def unpack_fashion(source: Path, folder: Path) -> None:
    """Write the first training and test images of Fashion-MNIST as folders of classes.

    Raises:
        SystemExit: the files of Fashion-MNIST are missing.
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
    """Return the bytes of one of its files, compressed or not."""
    packed, plain = source / f"{name}.gz", source / name
    if packed.exists():
        return np.frombuffer(gzip.decompress(packed.read_bytes()), dtype=np.uint8)
    if plain.exists():
        return np.frombuffer(plain.read_bytes(), dtype=np.uint8)
    raise SystemExit(f"{plain} is missing: give --fashion DIR, or --datasets emoji")


def show(runs: dict[str, Any]) -> int:
    """Print a table; return 1 if the mean of a method's seeds does not beat both baselines."""
    table = Table(title="Mean of seeds (minimum to maximum); margin over the better baseline")
    for heading in (
        "metric",
        "method",
        "seeds",
        "raw",
        "untrained",
        "trained",
        "margin",
        "minutes",
    ):
        table.add_column(heading, justify="left" if heading in ("metric", "method") else "right")
    failed = 0
    for title, dataset, figures, judged in (
        ("emoji, zero-shot R@1", "emoji", "figures", True),
        (f"fashion, {FEW} labels per class", "fashion", "few_labels", True),
        (f"fashion, {FASHION_TRAIN:,} labels", "fashion", "figures", False),
    ):
        for method in METHODS:
            matching = [
                run for key, run in runs.items() if key.rpartition("/")[0] == f"{dataset}/{method}"
            ]
            if not matching:
                continue
            # Supervised methods are judged by the embedding that they train, as in their papers.
            result = "embedding" if method in SUPERVISED else "backbone"
            raw, untrained, trained = (
                [each[figures][subject] for each in matching]
                for subject in ("raw", "untrained", result)
            )
            margins = [t - max(r, u) for r, u, t in zip(raw, untrained, trained, strict=True)]
            failed |= judged and statistics.mean(margins) <= 0
            table.add_row(
                title,
                method,
                str(len(matching)),
                f"{statistics.mean(raw):.3f}",
                f"{statistics.mean(untrained):.3f}",
                f"{statistics.mean(trained):.3f} ({min(trained):.3f} to {max(trained):.3f})",
                f"{statistics.mean(margins):+.3f}",
                f"{statistics.mean(each['seconds'] for each in matching) / 60:.1f}",
            )
    Console(width=120).print(table)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
