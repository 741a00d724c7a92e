"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): images of 32 x 32 pixels in Python pickles."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dasl_core.data.published.lists import PublishedImage, folder_with

BATCHES_OF_CIFAR10: Mapping[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
BATCHES_OF_CIFAR100: Mapping[str, tuple[str, ...]] = {"train": ("train",), "test": ("test",)}


def read_cifar10(source: Path) -> Iterator[PublishedImage]:
    """Read CIFAR-10's training and test images.

    Args:
        source: cifar-10-python.tar.gz, or the folder cifar-10-batches-py in it or the one that contains it.

    Raises:
        ValueError: a file is missing, or is not what the authors distribute.
    """
    names = _load(source, "cifar-10-batches-py", "batches.meta")[b"label_names"]
    yield from _read(source, "cifar-10-batches-py", BATCHES_OF_CIFAR10, names, b"labels")


def read_cifar100(source: Path) -> Iterator[PublishedImage]:
    """Read CIFAR-100's training and test images, with their fine labels.

    Args:
        source: cifar-100-python.tar.gz, or the folder cifar-100-python in it or the one that contains it.

    Raises:
        ValueError: a file is missing, or is not what the authors distribute.
    """
    names = _load(source, "cifar-100-python", "meta")[b"fine_label_names"]
    yield from _read(source, "cifar-100-python", BATCHES_OF_CIFAR100, names, b"fine_labels")


def _read(
    source: Path,
    folder: str,
    batches: Mapping[str, tuple[str, ...]],
    names: list[bytes],
    key: bytes,
) -> Iterator[PublishedImage]:
    for part, files in batches.items():
        count = 0
        for file in files:
            batch = _load(source, folder, file)
            try:
                pixels = batch[b"data"].values().reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
                for image, label in zip(pixels, batch[key], strict=True):
                    yield PublishedImage(part, names[label].decode(), f"{count:05d}.png", image)
                    count += 1
            except (LookupError, AttributeError, TypeError, ValueError) as error:
                raise ValueError(f"{file} is not a batch of CIFAR: {error!r}") from error


def _load(source: Path, folder: str, file: str) -> dict[bytes, Any]:
    """Unpickle one file, of the archive or of the folder unpacked from it."""
    try:
        if source.is_file():
            with tarfile.open(source) as archive:
                member = archive.extractfile(f"{folder}/{file}")
                assert member is not None, "the archive has files of this name, and no folders"
                content = member.read()
        else:
            content = (folder_with(source, file, folder) / file).read_bytes()
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise ValueError(f"{source} is not the archive with {folder}/{file}: {error}") from error
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except (
        pickle.UnpicklingError,
        EOFError,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        raise ValueError(f"{file} is damaged, or not a file of CIFAR: {error}") from error
    if not isinstance(batch, dict):
        raise ValueError(f"{file} is not a file of CIFAR: it holds no dict")
    return batch


class _Dtype:
    """What NumPy's dtype is unpickled to."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        name = code.decode() if isinstance(code, bytes) else code
        if name.strip("|") != "u1":
            raise pickle.UnpicklingError(f"it has an array of {name}, not of bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore the byte order: a byte has none."""


class _Array:
    """What NumPy's array is unpickled to: its shape and bytes, which no code of NumPy has read."""

    shape: tuple[int, ...] = ()
    content = b""

    def __init__(self, *_: object) -> None:
        """Begin without content, as NumPy does."""

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _, self.shape, _, _, self.content = state

    def values(self) -> np.ndarray:
        """The array, of uint8."""
        return np.frombuffer(self.content, np.uint8).reshape(self.shape)


# What an array needs. Python 2 wrote the authors' files, and NumPy has renamed its module since.
_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickler of plain values and arrays of bytes: a pickle could otherwise run any program."""

    def find_class(self, module: str, name: str) -> type:
        """Return what stands for one of NumPy's classes.

        Raises:
            pickle.UnpicklingError: the pickle asks for anything else.
        """
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which is not a part of CIFAR"
            )
        return _ALLOWED[module, name]
