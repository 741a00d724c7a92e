"""The experiments of SEC (Zhang, Li, Zhang, NeurIPS 2020).

Settings are those of the authors' code, https://github.com/Dyfine/SphericalEmbedding at f118c0e: `config.py`, and
the commands of its README, which are those of the triplet loss on CUB-200-2011. For other rates and weights it
refers to the paper's appendix B, which is not at hand.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from dasl_core.data.published import PUBLISHED
from examples.papers.row import RESNET50, Row

SOURCE = "https://github.com/Dyfine/SphericalEmbedding, imgs/experiment_results.png"
BATCH = 120
FINE_GRAINED = ("NMI", "F1", "R@1", "R@2", "R@4", "R@8")
METRICS = {
    "cub200": FINE_GRAINED,
    "cars196": FINE_GRAINED,
    "sop": ("NMI", "F1", "R@1", "R@10", "R@100", "R@1000"),
    "inshop": ("R@1", "R@10", "R@20", "R@30", "R@40", "R@50"),
}

# Figures of each table row, in the order of `METRICS`: without regularizer, with L2, with SEC.
# fmt: off
FIGURES: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "triplet": {
        "cub200": ((59.85, 23.39, 53.34, 65.60, 76.30, 84.98), (60.11, 24.03, 54.81, 66.21, 76.87, 84.91), (64.24, 30.83, 60.82, 71.61, 81.40, 88.86)),
        "cars196": ((56.66, 24.44, 60.79, 71.30, 79.47, 86.27), (56.65, 23.95, 63.02, 72.97, 80.79, 86.85), (59.17, 25.51, 67.89, 78.56, 85.59, 90.99)),
        "sop": ((88.67, 29.61, 62.69, 80.39, 91.89, 97.86), (88.93, 30.91, 64.07, 81.27, 92.18, 97.93), (89.68, 34.29, 68.86, 83.76, 92.93, 98.00)),
        "inshop": ((82.12, 95.18, 96.83, 97.54, 97.95, 98.26), (83.01, 95.46, 96.85, 97.45, 97.94, 98.28), (85.29, 96.29, 97.48, 97.99, 98.34, 98.57)),
    },
    "semihard": {
        "cub200": ((69.66, 40.30, 65.31, 76.45, 84.71, 90.99), (70.50, 41.39, 65.60, 76.81, 84.89, 90.82), (71.62, 42.05, 67.35, 78.73, 86.63, 91.90)),
        "cars196": ((67.64, 38.31, 80.17, 87.95, 92.49, 95.67), (69.24, 40.24, 82.60, 89.44, 93.54, 96.19), (72.67, 44.67, 85.19, 91.53, 95.28, 97.29)),
        "sop": ((91.16, 41.89, 74.46, 88.16, 95.21, 98.59), (91.16, 41.77, 74.88, 88.25, 95.18, 98.53), (91.72, 44.90, 77.59, 90.12, 96.04, 98.80)),
        "inshop": ((87.16, 97.11, 98.17, 98.54, 98.76, 98.98), (88.04, 97.39, 98.24, 98.65, 98.83, 98.99), (89.68, 97.95, 98.61, 98.94, 99.09, 99.21)),
    },
    "npair": {
        "cub200": ((69.58, 40.23, 61.36, 74.36, 83.81, 89.94), (69.73, 40.08, 64.58, 76.03, 84.74, 91.12), (72.24, 43.21, 66.00, 77.23, 86.01, 91.83)),
        "cars196": ((68.07, 37.83, 78.59, 87.22, 92.88, 95.94), (69.20, 39.13, 81.87, 88.85, 93.47, 96.54), (70.61, 42.12, 82.29, 89.60, 94.26, 97.07)),
        "sop": ((90.97, 41.21, 74.30, 87.81, 95.12, 98.55), (91.12, 41.73, 75.11, 88.42, 95.15, 98.53), (91.49, 43.75, 76.89, 89.64, 95.77, 98.68)),
        "inshop": ((86.43, 96.99, 98.00, 98.40, 98.70, 98.93), (86.54, 96.98, 98.06, 98.52, 98.73, 98.85), (88.63, 97.60, 98.45, 98.77, 99.01, 99.14)),
    },
    "multi-similarity": {
        "cub200": ((70.57, 40.70, 66.14, 77.03, 85.43, 91.26), (70.89, 41.71, 65.67, 76.98, 85.21, 91.19), (72.85, 44.82, 68.79, 79.42, 87.20, 92.49)),
        "cars196": ((70.23, 42.13, 84.07, 90.23, 94.12, 96.53), (71.00, 42.55, 84.82, 90.95, 94.59, 96.69), (73.95, 46.49, 85.73, 91.96, 95.51, 97.54)),
        "sop": ((91.42, 43.33, 76.29, 89.38, 95.58, 98.58), (91.65, 44.51, 77.34, 89.61, 95.67, 98.65), (91.89, 46.04, 78.67, 90.77, 96.15, 98.76)),
        "inshop": ((88.11, 97.55, 98.34, 98.76, 98.94, 99.09), (88.51, 97.59, 98.50, 98.84, 99.03, 99.12), (89.87, 97.94, 98.80, 99.06, 99.24, 99.35)),
    },
}
# fmt: on

# The weights of the README's commands, which are of the triplet loss on CUB-200-2011.
REGULARIZERS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "l2": {"target": "zero", "weight": 1e-4},
    "sec": {"weight": 1.0},
}
TITLES = {"none": "", "l2": " + L2", "sec": " + SEC"}


# The only loss whose embedding layer has no BatchNorm before it.
WITHOUT_NORM = ("multi-similarity", "none")

# README.md:80 to 84: rates of the loss alone, since "a larger learning rate harms the original loss function".
EXCEPTIONS = {
    "cub200": "1e-5 for the embedding layer and 5e-6 for the backbone",
    "cars196": "2e-5 for both parts",
}


class Loss(NamedTuple):
    """A loss of the table; `per_class`: images of each class in a batch, None for what the loss itself requires."""

    title: str
    method: dict[str, Any]
    per_class: int | None


LOSSES = {
    "triplet": Loss("Triplet", {"name": "triplet", "mining": "all"}, 3),
    "semihard": Loss("Semi-hard triplet", {"name": "triplet", "mining": "semihard"}, 3),
    "npair": Loss("Normalized N-pair", {"name": "npair"}, None),
    "multi-similarity": Loss("Multi-similarity", {"name": "multi_similarity"}, 5),
}


class Schedule(NamedTuple):
    """The authors' schedule on a data set.

    Attributes:
        lr: learning rate of the backbone.
        head_lr: learning rate of the embedding layer.
        decay_at: steps after which both are multiplied by `factor`.
    """

    steps: int
    lr: float
    head_lr: float
    weight_decay: float
    decay_at: tuple[int, ...]
    factor: float


SCHEDULES = {
    "cub200": Schedule(8_000, 5e-6, 1e-5, 2.5e-3, (5_000,), 0.1),
    # The code has also 0.1 at step 2,000; which row uses which is in appendix B.
    "cars196": Schedule(8_000, 1e-5, 1e-5, 2.5e-3, (4_000, 6_000), 0.5),
    "sop": Schedule(12_000, 5e-5, 2.5e-4, 1e-5, (6_000,), 0.1),
    "inshop": Schedule(12_000, 1e-4, 5e-4, 1e-5, (6_000,), 0.1),
}


def rows() -> Iterator[Row]:
    """Yield the rows of metric learning, and those of contrastive learning on CIFAR."""
    for loss, figures in FIGURES.items():
        for dataset, published in figures.items():
            for regularizer, values in zip(REGULARIZERS, published, strict=True):
                yield _row(loss, dataset, regularizer, values)
    yield from _contrastive_rows()


def _row(loss: str, dataset: str, regularizer: str, figures: tuple[float, ...]) -> Row:
    metrics = METRICS[dataset]
    title, method, per_class = LOSSES[loss]
    train = _train(loss, dataset, regularizer)
    if per_class is not None:
        train["samples_per_class"] = per_class
    return Row(
        name=f"sec-{dataset}-{loss}-{regularizer}",
        title=f"SEC (NeurIPS 2020): {title}{TITLES[regularizer]}",
        dataset=dataset,
        published=dict(zip(metrics, figures, strict=True)),
        source=SOURCE,
        spec={
            # `need_bn` of the code.
            "method": method | {"embedding_norm": (loss, regularizer) != WITHOUT_NORM},
            "backbone": BACKBONE,
            "augment": {"crop_scale": [0.16, 1.0]},
            "sec": REGULARIZERS[regularizer],
            "train": train,
            "evaluate": evaluation(dataset, metrics, train["epochs"]),
        },
        note=_note(loss, dataset, regularizer),
    )


def _note(loss: str, dataset: str, regularizer: str) -> str:
    """Say that the rate is not that of the published figures, where the README says so."""
    if loss != "multi-similarity" or regularizer == "none" or dataset not in EXCEPTIONS:
        return ""
    return (
        f"The authors' rate for this row is not at hand: their README gives {EXCEPTIONS[dataset]} for "
        "multi-similarity without SEC and without L2 only, because a larger rate harms it. So this row's is "
        "another, larger one; here it is the default of their code."
    )


def evaluation(dataset: str, metrics: tuple[str, ...], epochs: int) -> dict[str, Any]:
    """Settings that measure the metrics of a table on a data set."""
    retrieval = [int(name.removeprefix("R@")) for name in metrics if name.startswith("R@")]
    settings: dict[str, Any] = {"retrieval": retrieval, "crop_pct": 0.875}
    if dataset == "inshop":
        settings["gallery"] = "gallery"
    elif dataset == "sop":
        # Among 11,316 clusters, k-means takes longer than an epoch of training.
        settings |= {"clustering": {"restarts": 1}, "every_epochs": epochs}
    else:
        settings["clustering"] = True
    return settings


BACKBONE = RESNET50 | {"freeze_batch_norm": "all"}


def _train(loss: str, dataset: str, regularizer: str) -> dict[str, Any]:
    schedule = SCHEDULES[dataset]
    if loss == "triplet" and dataset == "cub200":  # the README's commands
        schedule = schedule._replace(lr=2.5e-6, head_lr=5e-6)
    if loss == "multi-similarity" and dataset == "cub200":
        schedule = schedule._replace(decay_at=(3_000, 6_000))
    if loss == "multi-similarity" and dataset == "cars196" and regularizer == "none":
        schedule = schedule._replace(lr=2e-5, head_lr=2e-5, decay_at=(2_000,), factor=0.1)
    images, _ = PUBLISHED[dataset].sizes["train"]
    steps_per_epoch = images // BATCH
    return {
        "epochs": round(schedule.steps / steps_per_epoch),
        "batch_size": BATCH,
        "warmup_epochs": 0,
        "optimizer": {
            "name": "adam",
            "lr": schedule.lr,
            "head_lr": round(schedule.head_lr / schedule.lr, 3),
            "weight_decay": schedule.weight_decay,
            "step_decay": {
                "epochs": [round(step / steps_per_epoch, 2) for step in schedule.decay_at],
                "factor": schedule.factor,
            },
        },
    }


CONTRASTIVE = "https://github.com/Dyfine/SimCLR_pytorch_distributed, README.md"
# Top-1 of a linear classifier after 100 and 200 epochs.
TOP1 = {"cifar10": {100: 84.76, 200: 89.05}, "cifar100": {100: 58.43, 200: 65.73}}
# main_supcon.py:158 to 162.
NORMALIZATION = {
    "cifar10": {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2023, 0.1994, 0.2010]},
    "cifar100": {"mean": [0.5071, 0.4867, 0.4408], "std": [0.2675, 0.2565, 0.2761]},
}
# Their loss is temperature / 0.07 times NT-Xent (losses.py:90). Each of their two processes has the gradient of its
# own half of the embeddings (main_supcon.py:269 to 277), of which DistributedDataParallel takes the mean, not the sum.
GRADIENT = 0.5 / 0.07 / 2
# SGD makes the same steps with a loss g times as large as with a rate g times as large and 1/g of the decay.
SGD = {
    "name": "sgd",
    "lr": round(0.5 * GRADIENT, 6),
    "lr_end": 0.001,
    "weight_decay": round(1e-4 / GRADIENT, 9),
}
RATE_NOTE = (
    "The authors' gradient is 3.571 times that of NT-Xent: temperature / 0.07, halved by their two processes. Here "
    "the rate is theirs, 0.5, times 3.571, and the weight decay theirs, 1e-4, divided by it."
)
ETA_NOTE = (
    "The paper's figures and its eta are not at hand: eta is this project's default. Divide an eta of theirs "
    "by temperature / 0.07 = 7.143."
)


def _contrastive_rows() -> Iterator[Row]:
    """SimCLR with and without SEC: the code that the authors point to for contrastive learning."""
    for dataset, figures in TOP1.items():
        for epochs, top1 in figures.items():
            for regularizer in ("none", "sec"):
                yield Row(
                    name=f"sec-{dataset}-simclr-{epochs}-{regularizer}",
                    title=f"SEC (NeurIPS 2020): SimCLR{TITLES[regularizer]}, {epochs} epochs",
                    dataset=dataset,
                    published={"Top-1": top1} if regularizer == "none" else {},
                    source=CONTRASTIVE if regularizer == "none" else ETA_NOTE,
                    spec={
                        "method": {"name": "simclr", "temperature": 0.5},
                        "backbone": {"name": "resnet50", "image_size": 32} | NORMALIZATION[dataset],
                        "augment": {"crop_scale": [0.2, 1.0], "jitter": 0.5},
                        "sec": None if regularizer == "none" else {"ramp": True},
                        "train": {
                            "epochs": epochs,
                            "batch_size": 256,
                            "warmup_epochs": 0,
                            "optimizer": dict(SGD),
                        },
                        "evaluate": {"linear": True},
                    },
                    note=RATE_NOTE,
                )
