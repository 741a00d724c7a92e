"""A row of a published table, and the file of its spec."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dasl_core.spec import dump_yaml

SPECS = Path(__file__).with_name("specs")
TITLES = {
    "cub200": "CUB-200-2011",
    "cars196": "Cars-196",
    "sop": "SOP",
    "inshop": "In-shop",
    "imagenet100": "ImageNet-100",
    "imagenet": "ImageNet-1K",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenette": "Imagenette",
}
"""Titles of data sets, by their names in `dasl prepare`, which Imagenette does not need."""

WEIGHTS = "weights/resnet50.tv_in1k.safetensors"
RESNET50 = {
    "name": "resnet50",
    "image_size": 224,
    "pretrained": WEIGHTS,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}
"""A ResNet-50 with torchvision's first ImageNet weights, and the normalization that they expect."""


@dataclass(frozen=True)
class Row:
    """One experiment of a paper.

    Attributes:
        name: of the spec and its file.
        title: what the paper's table calls it.
        dataset: name in `dasl prepare`.
        published: figures of the paper in percent, by their names there; empty if none is at hand.
        source: where these figures are published.
        spec: settings besides the name and the data sets.
        note: what its reader must know besides, in whole sentences.
        epoch: which one the figures are of; "" if it is not said.
    """

    name: str
    title: str
    dataset: str
    published: Mapping[str, float]
    source: str
    spec: Mapping[str, Any]
    note: str = ""
    epoch: Literal["best", "last", ""] = ""

    @property
    def test_part(self) -> str:
        """The part of the data set to evaluate on."""
        return "val" if self.dataset.startswith("imagenet") else "test"

    @property
    def file(self) -> Path:
        """The file of the spec."""
        return SPECS / f"{self.name}.yaml"

    def settings(self) -> dict[str, Any]:
        """The whole spec."""
        given = dict(self.spec)
        evaluate = {"dataset": f"{self.dataset}-{self.test_part}", **given.pop("evaluate")}
        head = {"name": self.name, "dataset": f"{self.dataset}-train"}
        return head | given | {"evaluate": evaluate}

    def text(self) -> str:
        """The content of the file: what it is, what is published, and the spec."""
        figures = ", ".join(f"{name} {value:.2f}" for name, value in self.published.items())
        of_epoch = f", {self.epoch} epoch" if self.epoch else ""
        published = f"Published: {figures} ({self.source}{of_epoch})." if figures else self.source
        lines = [
            "# Written by `python -m examples.papers`; change the tables there.",
            f"# {self.title} on {TITLES[self.dataset]}.",
            f"# {published}",
            *textwrap.wrap(self.note, 110, initial_indent="# ", subsequent_indent="# "),
            *(f"# {line}" for line in self.command()),
        ]
        spec = dump_yaml(self.settings(), default_flow_style=None, width=10_000)
        return "\n".join([*lines, spec]) + "\n"

    def command(self) -> list[str]:
        """The lines that say how to train and evaluate it without a service."""
        data = f"DATA/{self.dataset}"
        return [
            "Run (DATA: the folder that holds the TARGET of `dasl prepare`):",
            f"  dasl train examples/papers/specs/{self.file.name} --data {data}/train "
            f"--evaluate-data {data}/{self.test_part} -o build/papers/{self.name}",
        ]
