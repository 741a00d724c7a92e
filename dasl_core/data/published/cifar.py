"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): images of 32 x 32 pixels, in Python pickles or binary records."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dasl_core.data.published.lists import PublishedImage, folder_with

PIXELS = 3 * 32 * 32
# CIFAR-100's largest file has 155 MB.
LARGEST_FILE = 256 << 20


class _Version(NamedTuple):
    """How the authors distribute one of the data sets.

    Attributes:
        folder: in the archive.
        suffix: of the files of images.
        meta: file with the names of the classes.
        parts: files of each part, without the suffix.
        keys: of the names and the labels in pickles.
        label_bytes: of a binary record, of which the last one counts; then come its pixels.
    """

    folder: str
    suffix: str
    meta: str
    parts: Mapping[str, tuple[str, ...]]
    keys: tuple[bytes, bytes] = (b"", b"")
    label_bytes: int = 0


_PARTS_OF_CIFAR10 = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_CIFAR10 = (
    _Version(
        "cifar-10-batches-py", "", "batches.meta", _PARTS_OF_CIFAR10, (b"label_names", b"labels")
    ),
    _Version("cifar-10-batches-bin", ".bin", "batches.meta.txt", _PARTS_OF_CIFAR10, label_bytes=1),
)
_PARTS_OF_CIFAR100 = {"train": ("train",), "test": ("test",)}
_CIFAR100 = (
    _Version(
        "cifar-100-python", "", "meta", _PARTS_OF_CIFAR100, (b"fine_label_names", b"fine_labels")
    ),
    _Version("cifar-100-binary", ".bin", "fine_label_names.txt", _PARTS_OF_CIFAR100, label_bytes=2),
)


def read_cifar10(source: Path) -> Iterator[PublishedImage]:
    """Read CIFAR-10's training and test images.

    Args:
        source: cifar-10-python.tar.gz or cifar-10-binary.tar.gz, the folder in it or the one that contains it.

    Raises:
        ValueError: a file is missing, or is not what the authors distribute.
    """
    yield from _read(source, *_CIFAR10)


def read_cifar100(source: Path) -> Iterator[PublishedImage]:
    """Read CIFAR-100's training and test images, with their fine labels; source and errors as for CIFAR-10."""
    yield from _read(source, *_CIFAR100)


def _read(source: Path, pickles: _Version, records: _Version) -> Iterator[PublishedImage]:
    if source.is_file():
        binary = "binary" in source.name
    else:
        binary = any((at / records.meta).exists() for at in (source, source / records.folder))
    version = records if binary else pickles
    meta = _content(source, version.folder, version.meta)
    names = meta.split() if binary else _unpickle(meta, version.meta)[version.keys[0]]
    for part, files in version.parts.items():
        count = 0
        for file in files:
            content = _content(source, version.folder, file + version.suffix)
            batch: dict[bytes, Any] = {} if binary else _unpickle(content, file)
            try:
                if binary:
                    width = version.label_bytes + PIXELS
                    rows = np.frombuffer(content, np.uint8).reshape(-1, width)
                    labels, pixels = rows[:, version.label_bytes - 1], rows[:, -PIXELS:]
                else:
                    labels, pixels = batch[version.keys[1]], batch[b"data"].values()
                images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
                for image, label in zip(images, labels, strict=True):
                    yield PublishedImage(part, names[label].decode(), f"{count:05d}.png", image)
                    count += 1
            except (LookupError, AttributeError, TypeError, ValueError) as error:
                raise ValueError(f"{file} is not a batch of CIFAR: {error!r}") from error


def _content(source: Path, folder: str, file: str) -> bytes:
    """Read one file, of the archive or of the folder unpacked from it."""
    try:
        if source.is_file():
            with tarfile.open(source) as archive:
                member = archive.extractfile(f"{folder}/{file}")
                assert member is not None, "the archive has files of this name, and no folders"
                return member.read(LARGEST_FILE)
        with (folder_with(source, file, folder) / file).open("rb") as opened:
            return opened.read(LARGEST_FILE)
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise ValueError(f"{source} is not the archive with {folder}/{file}: {error}") from error


def _unpickle(content: bytes, file: str) -> dict[bytes, Any]:
    """Read a pickle without running anything in it."""
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
        """Return what stands for one of NumPy's classes; an UnpicklingError for anything else."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which is not a part of CIFAR"
            )
        return _ALLOWED[module, name]
