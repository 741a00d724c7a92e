"""The experiments of DAR (Chen et al., ICLR 2024) with the methods that are built here.

Only the poster, the abstract, the opening and the public reviews of the paper were at hand: settings that they leave
open are those of the methods' authors or this project's defaults. `dar.csv` has every figure of the poster.
"""

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from examples.papers.row import RESNET50, Row
from examples.papers.sec import METRICS, evaluation

SOURCE = "Chen et al., ICLR 2024, poster"
FIGURES = Path(__file__).with_name("dar.csv")
# Names of the poster's data sets and metrics here.
DATASETS = {
    "CAR-196": "cars196",
    "CUB-200": "cub200",
    "SOP": "sop",
    "ImageNet-100": "imagenet100",
    "ImageNet-1K": "imagenet",
}
NAMES = {"knn": "k-NN", "top1": "Top-1", "top5": "Top-5"}


class Line(NamedTuple):
    """A line of the poster's tables; `epochs` is "" for supervised methods, or "longer" where it has no number."""

    backbone: str
    method: str
    dataset: str
    epochs: str


@cache
def figures() -> dict[Line, dict[str, float]]:
    """Read the poster's figures in percent, by their names in the tables here."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return {
        Line(line["backbone"], line["method"], DATASETS[line["dataset"]], line["epochs"]): {
            NAMES.get(name, name): float(value)
            for name, value in list(line.items())[len(Line._fields) + 1 :]
            if value
        }
        for line in lines
    }


NOT_BUILT = {
    "CMC": "Needs two networks, one for luminance and one for color, and negatives from a memory bank: neither is "
    "built",
    "MetAug": "Learns its augmentations by meta-learning, which is not built here",
    "PQCL": "A method of its own that is not built here",
} | dict.fromkeys(
    ("JDR", "IBC", "AVSL", "MetricFormer", "ContextS"),
    "A supervised method with a network or loss of its own that is not built here",
)
"""Why the poster's other methods have no spec."""


class Schedule(NamedTuple):
    """The schedule of Proxy-Anchor's authors, with the BatchNorm that they freeze.

    https://github.com/tjddus9597/Proxy-Anchor-CVPR2020 at 51db570: the README's commands for a ResNet-50; for SOP,
    which has none, that of BN-Inception.

    Attributes:
        warm: epochs in which only the head learns.
        decay_every: epochs after which the learning rate is multiplied by `factor`.
    """

    batch_size: int
    lr: float
    warm: int
    freeze: str
    decay_every: int
    factor: float


SCHEDULES = {
    "cub200": Schedule(120, 1e-4, 5, "statistics", 5, 0.5),
    "cars196": Schedule(120, 1e-4, 5, "statistics", 10, 0.5),
    "sop": Schedule(180, 6e-4, 1, "none", 20, 0.25),
}
EPOCHS = 60

# The poster's names of N-pair and Proxy-Anchor, without and with DAR.
METRIC_LEARNING = {
    "npair": {"none": "N-pair", "dar": "DASL-NP"},
    "proxy_anchor": {"none": "Proxy-Anchor", "dar": "DASL-PA"},
}
METHODS = {
    "simclr": "SimCLR",
    "byol": "BYOL",
    "swav": "SwAV",
    "hcl": "HCL",
    "pcl": "PCL",
    "dino": "DINO",
    "ibot": "iBOT",
}
# Names for people, in file names and in timm.
BACKBONES = {
    "resnet50": ("ResNet-50", "resnet50", "resnet50"),
    "vit_base_patch16": ("ViT-B/16", "vit", "vit_base_patch16_224"),
}
VARIANTS = {"none": None, "free": "instance", "used": "cluster"}
"""`dar.labels` of each variant: without DAR, cluster-free and cluster-used."""
RUNS = (("imagenet100", 100), ("imagenet100", 400), ("imagenet", 300))

DINO_VIT_B = {"local_crops": 10, "freeze_last_layer_epochs": 3}

CLUSTERING_LOSS = (
    'The other reading of the poster\'s "cluster-used": DAR is added to a loss that itself uses clusters. Its one row '
    "stands beside both."
)
ON_VIT = "The poster does not say which loss DAR is added to on a ViT: its one row stands beside DINO and iBOT."
LONGER = (
    'The poster\'s second column has no number of epochs, only "longer": `--set train.epochs=N`.'
)


class SelfSupervised(NamedTuple):
    """A method on a backbone, for each number of epochs.

    Attributes:
        variants: keys of `VARIANTS`.
        recipe: of the spec; "authors" where the method's authors publish settings for this backbone.
        note: on its rows with DAR.
    """

    backbone: str
    method: str
    variants: tuple[str, ...] = ("none",)
    recipe: str = "authors"
    note: str = ""


SELF_SUPERVISED = (
    SelfSupervised("resnet50", "simclr", ("none", "free", "used")),
    SelfSupervised("resnet50", "byol"),
    SelfSupervised("resnet50", "swav", ("none", "used"), note=CLUSTERING_LOSS),
    SelfSupervised("resnet50", "hcl", recipe="small"),
    SelfSupervised("resnet50", "pcl", ("none", "used"), note=CLUSTERING_LOSS),
    SelfSupervised("vit_base_patch16", "dino", ("none", "free", "used"), note=ON_VIT),
    SelfSupervised("vit_base_patch16", "ibot", ("none", "free", "used"), note=ON_VIT),
    SelfSupervised("vit_base_patch16", "byol", recipe="small"),
    SelfSupervised("vit_base_patch16", "swav", recipe="small"),
)


def rows() -> Iterator[Row]:
    """Yield the rows of supervised metric learning, and those of ImageNet."""
    return (row for row, _ in rows_with_lines())


def rows_with_lines() -> Iterator[tuple[Row, tuple[Line, ...]]]:
    """Yield each row with the lines of the poster that stand beside it."""
    for method in METRIC_LEARNING:
        for dataset in SCHEDULES:
            for regularizer, poster in METRIC_LEARNING[method].items():
                line = Line("", poster, dataset, "")
                yield _metric_learning_row(method, regularizer, line), (line,)
    for group in SELF_SUPERVISED:
        for dataset, epochs in RUNS:
            for variant in group.variants:
                poster = METHODS[group.method] if variant == "none" else f"DASL cluster-{variant}"
                lines = [Line(group.backbone, poster, dataset, str(epochs))]
                if dataset == "imagenet":
                    lines.append(lines[0]._replace(epochs="longer"))
                yield _self_supervised_row(group, variant, epochs, lines), tuple(lines)


def _metric_learning_row(method: str, regularizer: str, line: Line) -> Row:
    dataset, with_dar = line.dataset, regularizer == "dar"
    schedule = SCHEDULES[dataset]
    train: dict[str, Any] = {
        "epochs": EPOCHS,
        "batch_size": schedule.batch_size,
        "warmup_epochs": 0,
        "head_only_epochs": schedule.warm,
        "clip": {"value": 10},
        "optimizer": {
            "name": "adamw",
            "lr": schedule.lr,
            "weight_decay": 1e-4,
            "step_decay": {"epochs": schedule.decay_every, "factor": schedule.factor},
        },
    }
    if method == "proxy_anchor":
        train["samples_per_class"] = None
    evaluate = evaluation(dataset, METRICS[dataset], EPOCHS)
    if dataset != "sop":
        # The authors' code reports the best epoch on the test classes (code/train.py:337).
        evaluate["every_epochs"] = 1
    name = method.replace("_", "-")
    return Row(
        name=f"dar-{dataset}-{name}-{regularizer}",
        title=f"DAR (ICLR 2024): {METRIC_LEARNING[method]['none']}{' + DAR' if with_dar else ''}",
        dataset=dataset,
        published=figures()[line],
        source=SOURCE,
        spec={
            "method": {"name": method, "embedding_init": "kaiming"},
            "backbone": RESNET50 | {"pooling": "average_max", "freeze_batch_norm": schedule.freeze},
            "augment": {"crop_scale": [0.08, 1.0]},
            "dar": {"labels": "class"} if with_dar else None,
            "train": train,
            "evaluate": evaluate,
        },
    )


def _self_supervised_row(
    group: SelfSupervised, variant: str, epochs: int, lines: list[Line]
) -> Row:
    dataset, labels = lines[0].dataset, VARIANTS[variant]
    backbone, short, timm = BACKBONES[group.backbone]
    published, notes = dict(figures()[lines[0]]), []
    if len(lines) > 1:
        published |= {f"{name} (longer)": value for name, value in figures()[lines[1]].items()}
        notes.append(LONGER)
    if labels is not None and group.note:
        notes.append(group.note)
    dar = f" + DAR, cluster-{variant}" if labels else ""
    # Of the arguments of DINO's published ViT-B, what no recipe sets.
    views = DINO_VIT_B if group.method == "dino" and epochs >= 300 else {}
    return Row(
        name=f"dar-{dataset}-{short}-{group.method}-{epochs}-{variant}",
        title=f"DAR (ICLR 2024): {METHODS[group.method]}{dar}, {backbone}, {epochs} epochs",
        dataset=dataset,
        published=published,
        source=SOURCE,
        spec={
            "recipe": group.recipe,
            "method": {"name": group.method} | views,
            "backbone": {"name": timm, "image_size": 224},
            "dar": None if labels is None else {"labels": labels},
            "train": {"epochs": epochs, "batch_size": 256},
            "evaluate": {"knn": {"k": 20}, "linear": True, "crop_pct": 0.875},
        },
        note=" ".join(notes),
    )
