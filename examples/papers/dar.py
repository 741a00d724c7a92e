"""The experiments of DAR (Chen et al., ICLR 2024) with the methods that are built here.

Only the poster, the abstract, the opening and the public reviews of the paper were at hand: settings that they leave
open are those of the methods' authors or this project's defaults.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from examples.papers.row import RESNET50, Row
from examples.papers.sec import METRICS, evaluation

SOURCE = "Chen et al., ICLR 2024"
METRIC_LEARNING = {
    # R@1 without and with DAR, by data set.
    "npair": {"cars196": (82.57, 86.34), "cub200": (64.52, 69.63), "sop": (76.21, 79.21)},
    "proxy_anchor": {"cars196": (87.71, 92.31), "cub200": (69.72, 73.96), "sop": (78.39, 83.32)},
}
# NMI of Proxy-Anchor with DAR.
NMI = {"cars196": 77.32, "cub200": 76.50, "sop": 93.86}
TITLES = {"npair": "N-pair", "proxy_anchor": "Proxy-Anchor"}


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

NOT_AT_HAND = "The paper's figure is not at hand."


class SelfSupervised(NamedTuple):
    """A row of ImageNet-100: k-NN accuracy after 100 epochs.

    Attributes:
        labels: of DAR's pairs; None without DAR.
        recipe: of the spec; "authors" where the method's authors publish settings for this backbone.
        knn: published; None if the figure is not at hand.
    """

    backbone: str
    method: str
    labels: str | None
    recipe: str
    knn: float | None


SELF_SUPERVISED = (
    SelfSupervised("resnet50", "simclr", None, "authors", 55.9),
    SelfSupervised("resnet50", "simclr", "instance", "authors", 60.5),
    SelfSupervised("resnet50", "simclr", "cluster", "authors", 61.5),
    SelfSupervised("resnet50", "byol", None, "authors", None),
    SelfSupervised("resnet50", "swav", None, "authors", None),
    SelfSupervised("resnet50", "hcl", None, "small", None),
    SelfSupervised("resnet50", "pcl", None, "small", None),
    # The sources do not say which loss DAR is added to on a ViT: here DINO's.
    SelfSupervised("vit_base_patch16_224", "dino", None, "authors", 61.5),
    SelfSupervised("vit_base_patch16_224", "dino", "instance", "authors", 62.5),
    SelfSupervised("vit_base_patch16_224", "dino", "cluster", "authors", 63.4),
    SelfSupervised("vit_base_patch16_224", "ibot", None, "authors", 61.5),
    SelfSupervised("vit_base_patch16_224", "byol", None, "small", None),
    SelfSupervised("vit_base_patch16_224", "swav", None, "small", None),
)
SHORT = {"resnet50": "resnet50", "vit_base_patch16_224": "vit"}
BACKBONES = {"resnet50": "ResNet-50", "vit_base_patch16_224": "ViT-B/16"}
METHODS = {
    "simclr": "SimCLR",
    "byol": "BYOL",
    "swav": "SwAV",
    "hcl": "HCL",
    "pcl": "PCL",
    "dino": "DINO",
    "ibot": "iBOT",
}
VARIANTS = {
    None: ("none", ""),
    "instance": ("free", ", cluster-free"),
    "cluster": ("used", ", cluster-used"),
}


def rows() -> Iterator[Row]:
    """Yield the rows of supervised metric learning, and those of ImageNet-100."""
    for method, figures in METRIC_LEARNING.items():
        for dataset, pair in figures.items():
            for regularizer, recall in zip(("none", "dar"), pair, strict=True):
                yield _metric_learning_row(method, dataset, regularizer, recall)
    yield from map(_self_supervised_row, SELF_SUPERVISED)


def _metric_learning_row(method: str, dataset: str, regularizer: str, recall: float) -> Row:
    schedule = SCHEDULES[dataset]
    with_dar = regularizer == "dar"
    published = {"R@1": recall}
    if with_dar and method == "proxy_anchor":
        published["NMI"] = NMI[dataset]
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
    name = method.replace("_", "-")
    return Row(
        name=f"dar-{dataset}-{name}-{regularizer}",
        title=f"DAR (ICLR 2024): {TITLES[method]}{' + DAR' if with_dar else ''}",
        dataset=dataset,
        published=published,
        source=SOURCE,
        spec={
            "method": {"name": method, "embedding_init": "kaiming"},
            "backbone": RESNET50 | {"pooling": "average_max", "freeze_batch_norm": schedule.freeze},
            "augment": {"crop_scale": [0.08, 1.0]},
            "dar": {"labels": "class"} if with_dar else None,
            "train": train,
            "evaluate": evaluation(dataset, METRICS[dataset], EPOCHS),
        },
    )


def _self_supervised_row(row: SelfSupervised) -> Row:
    short, words = VARIANTS[row.labels]
    dar = f" + DAR{words}" if row.labels else ""
    return Row(
        name=f"dar-imagenet100-{SHORT[row.backbone]}-{row.method}-{short}",
        title=f"DAR (ICLR 2024): {METHODS[row.method]}{dar}, {BACKBONES[row.backbone]}, 100 epochs",
        dataset="imagenet100",
        published={} if row.knn is None else {"k-NN": row.knn},
        source=NOT_AT_HAND if row.knn is None else SOURCE,
        spec={
            "recipe": row.recipe,
            "method": {"name": row.method},
            "backbone": {"name": row.backbone, "image_size": 224},
            "dar": None if row.labels is None else {"labels": row.labels},
            "train": {"epochs": 100, "batch_size": 256},
            "evaluate": {"knn": {"k": 20}, "linear": True, "crop_pct": 0.875},
        },
    )
