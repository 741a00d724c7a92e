"""Helpers for tests of exports: kinds of backbones, and readers that do not import this project."""

import io
import json
import pickle
import pickletools
import re
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from dasl_core.spec import ResolvedJobSpec

BACKBONE_KINDS: dict[str, dict[str, Any]] = {
    "resnet18-small": {"name": "resnet18", "image_size": 32, "stem": "small"},
    "deep-stem-small": {"name": "resnet10t", "image_size": 32, "stem": "small"},
    "vit-small": {"name": "test_vit", "image_size": 32, "stem": "small"},
    "vit-large-image-gray": {
        "name": "test_vit",
        "image_size": 96,
        "stem": "standard",
        "in_channels": 1,
    },
    "resnet-standard": {
        "name": "test_resnet",
        "image_size": 96,
        "stem": "standard",
        "pooling": "average_max",
    },
    "resnet-small-gray": {"name": "resnet10t", "image_size": 16, "stem": "small", "in_channels": 1},
}

READER = Path(__file__).with_name("export_reader.py")


def images_for(spec: ResolvedJobSpec, count: int = 3) -> np.ndarray:
    size, channels = spec.backbone.image_size, spec.backbone.in_channels
    images: np.ndarray = np.random.default_rng(0).normal(size=(count, channels, size, size))
    return images.astype(np.float32)


def code_of(folder: Path, block: int = 0) -> str:
    """Return a Python block of the folder's model card."""
    return str(
        re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[block]
    )


class Reader:
    """A Python process that computes features with the code of model cards, without `absent` modules.

    It reads many folders, because starting it and importing timm takes seconds.
    """

    def __init__(self, absent: str = "dasl_core,service,workers") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", READER, absent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def features(
        self, folders: Sequence[Path], codes: Sequence[str], images: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Compute the features of each folder's images with its code."""
        for folder, code, its_images in zip(folders, codes, images, strict=True):
            (folder / "code.py").write_text(code)
            np.save(folder / "images.npy", its_images)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(folder) for folder in folders]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer == "done\n", "the reader failed: see its standard error"
        return [np.load(folder / "features.npy") for folder in folders]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # this ends the process
        self._process.wait(30)


def shake(network: torch.nn.Module) -> torch.nn.Module:
    """Change all weights and running statistics from their initial values, as training does."""
    generator = torch.Generator().manual_seed(0)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor += 0.1 * torch.rand(tensor.shape, generator=generator)
    return network.eval()


def pickles_in(data: bytes, name: str) -> list[str]:
    """Return the names of all pickles (any protocol) in `data` or, if it is an archive, its members."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = archive.namelist()
        return [
            p for member in members for p in pickles_in(archive.read(member), f"{name}/{member}")
        ]
    try:
        with warnings.catch_warnings(action="ignore"):  # odd escapes in other data
            stop = [position for _, _, position in pickletools.genops(data)][-1]
    except (ValueError, IndexError):
        return []
    # Protocols 0 and 1 have no magic number; random bytes may parse, but not to the end.
    return [name] if data[:1] == pickle.PROTO or stop == len(data) - 1 else []
