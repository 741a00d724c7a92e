"""The certificate of a run: evidence that `dasl verify` checks without repeating the run.

Each checkpoint has one. It says what was trained, on what and with what, and has a chain of entries over the steps so
far. From any kept checkpoint, the steps to the next entry can be trained again, and must give the same bits.
"""

import hashlib
import platform
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

import dasl_core
from dasl_core.data.file_digests import digest_labels, merkle_root
from dasl_core.distributed import whole_tensor, world_size
from dasl_core.installed import installed_version
from dasl_core.train.data import TrainingData
from dasl_core.vocabulary import CERTIFICATE

LARGEST = 32 << 20
"""Limit on the size of its file in bytes: a hundred thousand entries. Reading it takes fifty times as much memory."""
# Hashing the weights takes less than 2 % of a hundred steps; `python -m benchmarks.certificate`.
STEPS = 100
_LIBRARIES = ("dasl", "torch", "timm", "numpy", "pillow")


class Entry(BaseModel):
    """An entry of the chain; see `Progress.add_entry`."""

    step: int
    terms: str
    first_loss: float | None
    mean_loss: float | None
    weights: str
    link: str


class Environment(BaseModel):
    """What the bits of a run depend on, besides its spec and its images; since which step."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: int
    code: str
    libraries: dict[str, str | None]
    device: str
    cuda: str | None
    instructions: str
    threads: int
    ranks: int


class Certificate(BaseModel):
    """The content of `certificate.json`.

    Attributes:
        branched_at: step of another run's checkpoint at which the run started.
        own_views: whether code of the author makes the views, which this does not describe.
        names: digest of the names and sizes of the training images, in order.
        data: number of images, root of the tree of the files' SHA-256, and SHA-256 of the labels, by data set.
        environments: those of its attempts that differ from the one before, oldest first.
        unreadable: number of images that can no longer be read; what is drawn in their place is not repeated.
        state: SHA-256 of the files of the training state.
        figures: all evaluations.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1] = 1
    step: int
    ended: bool
    branched_at: int
    own_views: bool
    spec_version: int
    spec: dict[str, Any]
    names: str
    data: dict[str, dict[str, int | str | None]]
    environments: Annotated[list[Environment], Field(min_length=1)]
    unreadable: int
    chain: list[Entry]
    state: dict[str, str]
    figures: list[dict[str, Any]]


def is_entry(step: int, steps_per_epoch: int) -> bool:
    """Whether the chain has an entry after this step: every hundred, and at the end of an epoch."""
    return step % STEPS == 0 or step % steps_per_epoch == 0


def digest_weights(state: Mapping[str, Tensor]) -> str:
    """Compute the SHA-256 of all weights and buffers of a network, with their names, types and shapes.

    If FSDP has sharded them, all ranks must call this.
    """
    content = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        value = whole_tensor(tensor.detach()).cpu().contiguous()
        content.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


def environment(device: torch.device) -> dict[str, Any]:
    """Return the fields of an `Environment` but the step."""
    is_cuda = device.type == "cuda"
    return {
        "code": _digest_code(),
        "libraries": {name: installed_version(name) for name in _LIBRARIES},
        "device": torch.cuda.get_device_name(device) if is_cuda else _processor(),
        "cuda": torch.version.cuda if is_cuda else None,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "ranks": world_size(),
    }


def describe_data(data: TrainingData, on_read: Callable[[], object]) -> dict[str, Any]:
    """Describe each data set's images: number, files, labels. `on_read` is called after each file of unknown digest."""
    return {
        name: {
            "images": len(canvases.index),
            "files": None
            if canvases.digests is None
            else merkle_root(canvases.digests.complete(on_read)),
            "labels": digest_labels(canvases.index),
        }
        for name, canvases in data.sets.items()
    }


def digest_file(file: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_certificate(folder: Path, content: Certificate) -> str:
    """Write the certificate into the folder of a checkpoint; return its SHA-256."""
    file = folder / CERTIFICATE
    file.write_text(content.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return digest_file(file)


def read_certificate(file: Path) -> Certificate:
    """Read the certificate of a stranger; a ValueError that names the file if it is none."""
    if file.stat().st_size > LARGEST:
        raise ValueError(f"{file} is too large for a certificate")
    try:
        return Certificate.model_validate_json(file.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{file} is no certificate: {place}: {problem['msg']}") from error


@cache
def _digest_code() -> str:
    """Compute the SHA-256 of the code that trains."""
    root, content = Path(dasl_core.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        content.update(f"{file.relative_to(root)} {digest_file(file)}".encode())
    return content.hexdigest()


def _processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo")
    if lines.exists():
        for line in lines.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
