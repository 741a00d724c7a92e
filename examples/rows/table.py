"""The rows: lightly's on CIFAR-10 and Imagenette, solo-learn's on CIFAR-100, stable-pretraining's on Imagenette.

Figures and settings were read in https://github.com/lightly-ai/lightly at e8d317f
(`docs/source/getting_started/benchmarks.rst` with its scripts `benchmarks/cifar10_benchmark.py` and
`imagenette_benchmark.py`, `lightly/transforms`, `lightly/models/modules/heads.py`),
https://github.com/vturrisi/solo-learn at 9187ea3 (`README.md`, `scripts/pretrain/cifar`, `solo/methods`) and
https://github.com/rbalestr-lab/stable-pretraining at 9aa93f8 (`benchmarks/imagenet10`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.papers.row import Row

SPECS = Path(__file__).with_name("specs")
Settings = dict[str, Any]

METHODS = {
    "simclr": "SimCLR",
    "byol": "BYOL",
    "dino": "DINO",
    "swav": "SwAV",
    "barlow_twins": "Barlow Twins",
    "vicreg": "VICReg",
}


@dataclass(frozen=True)
class PublishedRow(Row):
    """A row that another library publishes, which one command trains."""

    @property
    def file(self) -> Path:
        return SPECS / f"{self.name}.yaml"

    def command(self) -> list[str]:
        return [
            "Run (DATA: see examples/rows/README.md):",
            f"  python -m examples.rows {self.name} --data DATA --output build/rows/{self.name}",
        ]


def rows() -> Iterator[PublishedRow]:
    """Yield all rows."""
    yield from _lightly_cifar10()
    yield from _lightly_imagenette()
    yield from _solo_learn_cifar100()
    yield from _stable_pretraining_imagenette()


# Jitter of brightness and contrast 0.4, as all scripts but SimCLR's and SwAV's of solo-learn have it; of saturation
# and hue 0.2 and 0.1 where `saturation` is 0.5.
SYMMETRIC: Settings = {"crop_scale": [0.08, 1.0], "jitter": 0.5}
ASYMMETRIC: Settings = SYMMETRIC | {"saturation": 0.5, "solarize": [0.0, 0.2]}
SWAV_VIEWS: Settings = {"crop_scale": [0.14, 1.0], "jitter": 0.5}
DINO_VIEWS: Settings = ASYMMETRIC | {"crop_scale": [0.4, 1.0], "interpolation": "bicubic"}

LIGHTLY_NOTE = "Theirs is float32, and has weight decay on biases and norms, too. Here precision is automatic: bfloat16 on a GPU."
# lightly's loss is a quarter of the sum over both directions of 2 - 2 cos. SGD makes the same steps with a loss four
# times as large, a quarter of the rate, and four times the decay.
BYOL_NOTE = (
    "Their loss is a quarter of ours: the rate here is a quarter of theirs, and the decay four times theirs, which "
    "gives the same steps. Their teacher's momentum stays at 0.99; here it grows to 1."
)
DINO_NOTE = (
    "Their teacher's momentum stays at 0.99; here it grows to 1. Each of their views has its own batch statistics; "
    "here the global views share them."
)
SWAV_NOTE = "Each of their views has its own batch statistics, and their prototypes have biases; here neither."


def _lightly(
    method: str,
    dataset: str,
    published: float,
    settings: Mapping[str, Settings],
    backbone: Settings,
    epochs: int,
    batch: int,
    knn: Settings,
    note: str,
) -> PublishedRow:
    """Return a row of lightly, whose tables have the best k-NN accuracy of all epochs on the test images."""
    return PublishedRow(
        name=f"{dataset}-{method}",
        title=f"Row of lightly: {METHODS[method]}, ResNet-18, {epochs} epochs",
        dataset=dataset,
        published={"k-NN": published},
        source="https://github.com/lightly-ai/lightly, docs/source/getting_started/benchmarks.rst",
        epoch="best",
        spec={
            "method": {"name": method, **settings["method"]},
            "backbone": {"name": "resnet18", **backbone},
            "augment": settings["augment"],
            "train": {
                "epochs": epochs,
                "batch_size": batch,
                "warmup_epochs": 0,
                "clip": None,
                "optimizer": settings["optimizer"],
            },
            "evaluate": {"knn": knn, "retrieval": [], "every_epochs": 1, "crop_pct": 1.0},
        },
        note=note,
    )


def _lightly_settings(sgd: float, adam: float, widths: Mapping[str, int]) -> dict[str, Settings]:
    """Return what both scripts share, with the rates at the batch of the table."""
    return {
        "simclr": {
            "method": {"temperature": 0.5, "last_batch_norm": True, "separate_views": True},
            "augment": SYMMETRIC,
            "optimizer": {"name": "sgd", "lr": sgd, "weight_decay": 5e-4},
        },
        "byol": {
            "method": {
                "hidden_dim": widths["byol"],
                "teacher_momentum": 0.99,
                "separate_views": True,
            },
            "augment": ASYMMETRIC,
            "optimizer": {"name": "sgd", "lr": sgd / 4, "weight_decay": 2e-3},
        },
        "dino": {
            "method": {
                "hidden_dim": 2048,
                "out_dim": 2048,
                "head_batch_norm": True,
                "teacher_temperature": 0.04,
                "teacher_temperature_epochs": 0,
                "teacher_momentum": 0.99,
                "freeze_last_layer_epochs": 0,
                "keep": "student",
            },
            "augment": DINO_VIEWS,
            "optimizer": {"name": "sgd", "lr": sgd, "weight_decay": 5e-4},
        },
        "swav": {
            "method": {
                "hidden_dim": widths["swav"],
                "prototypes": widths["prototypes"],
                "queue_length": 0,
                "freeze_prototypes_epochs": 0,
            },
            "augment": SWAV_VIEWS,
            "optimizer": {"name": "adam", "lr": adam, "weight_decay": 1e-6},
        },
    }


NOTES = {
    "simclr": LIGHTLY_NOTE,
    "byol": f"{BYOL_NOTE} {LIGHTLY_NOTE}",
    "dino": f"{DINO_NOTE} {LIGHTLY_NOTE}",
    "swav": f"{SWAV_NOTE} {LIGHTLY_NOTE}",
}


def _lightly_cifar10() -> Iterator[PublishedRow]:
    published = {"simclr": 84.8, "byol": 86.8, "dino": 81.3, "swav": 84.2}
    # The script scales 0.06 and 0.001, its rates at a batch of 128, linearly.
    shared = _lightly_settings(0.24, 0.004, {"byol": 1024, "swav": 512, "prototypes": 512})
    for method, settings in shared.items():
        views = settings["augment"] | {"blur": 0.0}
        crops = {"local_crops": 0} if method in ("dino", "swav") else {}
        note = NOTES[method]
        if method == "dino":
            note = f"Their head has two layers here, ours has three. {note}"
        yield _lightly(
            method,
            "cifar10",
            published[method],
            settings | {"augment": views, "method": settings["method"] | crops},
            {"image_size": 32},
            epochs=200,
            batch=512,
            knn={"k": 200, "temperature": 0.1},
            note=note,
        )


def _lightly_imagenette() -> Iterator[PublishedRow]:
    published = {"simclr": 88.9, "byol": 88.7, "dino": 88.8, "swav": 90.2}
    shared = _lightly_settings(0.06, 0.001, {"byol": 4096, "swav": 2048, "prototypes": 3000})
    local = {"local_crops": 6, "local_size": 64}
    crops = {
        "dino": local | {"local_scale": [0.05, 0.4]},
        "swav": local | {"local_scale": [0.05, 0.14]},
    }
    blur = {"simclr": 0.5, "byol": [1.0, 0.1], "dino": [1.0, 0.1, 0.5], "swav": 0.5}
    for method, settings in shared.items():
        views = settings["augment"] | {"blur": blur[method]}
        if method == "dino":
            views["solarize"] = [0.0, 0.2, 0.0]
        yield _lightly(
            method,
            "imagenette",
            published[method],
            settings | {"augment": views, "method": settings["method"] | crops.get(method, {})},
            {"image_size": 128, "stem": "standard"},
            epochs=800,
            batch=256,
            knn={"k": [200, 20], "temperature": 0.1},
            note="Of imagenette2-160. Their text says 20 neighbors, their script takes 200: `knn_top1_k20` of "
            f"metrics.json has 20. {NOTES[method]}",
        )


def _solo_learn_cifar100() -> Iterator[PublishedRow]:
    """Rows of solo-learn, whose classifier learns beside the network, on its random views."""
    published = {
        "simclr": (65.78, 89.04),
        "byol": (70.46, 91.96),
        "dino": (66.76, 90.34),
        "swav": (64.88, 88.78),
        "barlow_twins": (70.90, 91.91),
        "vicreg": (68.54, 90.83),
    }
    strong = {"crop_scale": [0.08, 1.0], "jitter": 1.0, "blur": 0.5}
    asymmetric = ASYMMETRIC | {"blur": 0.0}
    separate = {"separate_views": True}
    wide = separate | {"hidden_dim": 2048, "projection_dim": 2048}
    blurred = "Their blur is as wide as its sigma asks, up to 2 pixels; here it has 3 x 3 pixels."
    settings: dict[str, tuple[Settings, Settings, float, float, str]] = {
        "simclr": (
            separate | {"temperature": 0.2, "hidden_dim": 2048, "projection_dim": 256},
            strong,
            0.4,
            1e-4,
            f"Their projector has no batch normalization. {blurred}",
        ),
        "byol": (
            separate | {"hidden_dim": 4096, "projection_dim": 256, "teacher_momentum": 0.99},
            asymmetric,
            1.0,
            1e-5,
            "",
        ),
        "dino": (
            {
                "local_crops": 0,
                "hidden_dim": 2048,
                "out_dim": 4096,
                "teacher_temperature": 0.07,
                "teacher_temperature_epochs": 0,
                "teacher_momentum": 0.9995,
                "keep": "student",
            },
            asymmetric,
            0.3,
            1e-6,
            "",
        ),
        "swav": (
            {
                "local_crops": 0,
                "hidden_dim": 2048,
                "prototypes": 3000,
                "queue_length": 3840,
                "queue_start_epoch": 50,
                "freeze_prototypes_epochs": 2,
            },
            strong,
            0.6,
            1e-6,
            blurred,
        ),
        "barlow_twins": (wide | {"loss_scale": 0.1}, asymmetric, 0.3, 1e-4, ""),
        "vicreg": (
            wide | {"variance": 50.0},
            SYMMETRIC | {"crop_scale": [0.2, 1.0], "saturation": 0.5, "blur": 0.0, "solarize": 0.1},
            0.3,
            1e-4,
            "Their variance term is the sum over both views, ours the mean: hence 50 for their 25.",
        ),
    }
    online = (
        "Their classifier learns during the training, from random views; ours after it, from the whole images. Which "
        "epoch theirs is of is not said."
    )
    for method, (options, views, rate, decay, note) in settings.items():
        top1, top5 = published[method]
        yield PublishedRow(
            name=f"cifar100-{method.replace('_', '-')}",
            title=f"Row of solo-learn: {METHODS[method]}, ResNet-18, 1000 epochs",
            dataset="cifar100",
            published={"Top-1": top1, "Top-5": top5},
            source="https://github.com/vturrisi/solo-learn, README.md",
            spec={
                "method": {"name": method, **options},
                "backbone": {
                    "name": "resnet18",
                    "image_size": 32,
                    "mean": [0.5071, 0.4865, 0.4409],
                    "std": [0.2673, 0.2564, 0.2762],
                },
                "augment": views | {"interpolation": "bicubic"},
                "train": {
                    "epochs": 1000,
                    "batch_size": 256,
                    "warmup_epochs": 10,
                    "clip": None,
                    "optimizer": {"name": "lars", "lr": rate, "larc": 0.02, "weight_decay": decay},
                },
                "evaluate": {"linear": True},
            },
            note=f"{online} {note}".strip(),
        )


def _stable_pretraining_imagenette() -> Iterator[PublishedRow]:
    """Rows of stable-pretraining: the best of all epochs, k-NN among the newest 10,000 training views."""
    published = {"simclr": (73.3, 74.9), "dino": (83.8, 86.1), "swav": (86.4, 89.7)}
    photometric = {
        "jitter": 0.5,
        "saturation": 0.5,
        "blur": 0.5,
        "solarize": 0.2,
        "crop_scale": [0.4, 1.0],
    }
    adamw = {"name": "adamw", "lr": 5e-4, "weight_decay": 0.05}
    betas = "Their AdamW has a second beta of 0.95, ours 0.999."
    settings: dict[str, tuple[Settings, Settings, int, Settings, str]] = {
        "simclr": (
            {"temperature": 0.2, "hidden_dim": 2048, "projection_dim": 256},
            ASYMMETRIC | {"blur": [1.0, 0.1]},
            256,
            {"name": "lars", "lr": 0.3, "larc": 0.02, "weight_decay": 1e-4},
            "Their projector has three layers, ours two. RESULTS.md names AdamW or LARS with about 5e-4; the script, "
            "followed here, LARS with 0.3.",
        ),
        "dino": (
            {
                "local_crops": 6,
                "local_size": 96,
                "local_scale": [0.05, 0.4],
                "hidden_dim": 2048,
                "out_dim": 65_536,
                "teacher_temperature": 0.07,
                "teacher_temperature_epochs": 10,
                "teacher_momentum": 0.996,
                "freeze_last_layer_epochs": 0,
            },
            photometric,
            128,
            adamw,
            f"The rows of their last layer have no fixed length. {betas}",
        ),
        "swav": (
            {
                "local_crops": 4,
                "local_size": 96,
                "local_scale": [0.05, 0.4],
                "hidden_dim": 2048,
                "prototypes": 3000,
                "queue_length": 0,
                "freeze_prototypes_epochs": 0,
            },
            photometric,
            128,
            adamw,
            f"Their local crops have codes, too, which the global crops predict. {betas}",
        ),
    }
    protocol = (
        "Their classifier learns during the training, from random views, and their k-NN searches the newest 10,000 of "
        "these by Euclidean distance; ours measure after epochs, in the whole images. Which size of Imagenette they "
        "took is not said."
    )
    for method, (options, views, batch, optimizer, note) in settings.items():
        knn, top1 = published[method]
        yield PublishedRow(
            name=f"imagenette-vits-{method}",
            title=f"Row of stable-pretraining: {METHODS[method]}, ViT-S/16, 200 epochs",
            dataset="imagenette",
            published={"k-NN": knn, "Top-1": top1},
            source="https://github.com/rbalestr-lab/stable-pretraining, benchmarks/imagenet10/RESULTS.md",
            epoch="best",
            spec={
                "method": {"name": method, **options},
                "backbone": {"name": "vit_small_patch16_224", "image_size": 224},
                "augment": views,
                "train": {
                    "epochs": 200,
                    "batch_size": batch,
                    "warmup_epochs": 2,
                    "clip": None,
                    "optimizer": optimizer,
                },
                "evaluate": {"linear": True, "retrieval": [], "every_epochs": 1},
            },
            note=f"{note} {protocol}",
        )
