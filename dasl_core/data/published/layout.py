"""Lay out a published data set as folders that jobs and `dasl train` take as data sets."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dasl_core.data.published.cifar import read_cifar10, read_cifar100
from dasl_core.data.published.imagenet import read_imagenet
from dasl_core.data.published.imagenet100 import read_imagenet100
from dasl_core.data.published.lists import PackedFile, PublishedImage
from dasl_core.data.published.retrieval import read_cars196, read_cub200, read_inshop, read_sop


@dataclass(frozen=True)
class PublishedDataset:
    """A data set that `dasl prepare` lays out.

    Attributes:
        read: yields its images, given the folder or archive of the authors.
        sizes: published number of images and of classes of each part.
    """

    read: Callable[[Path], Iterator[PublishedImage]]
    sizes: Mapping[str, tuple[int, int]]


PUBLISHED = {
    "cub200": PublishedDataset(read_cub200, {"train": (5_864, 100), "test": (5_924, 100)}),
    "cars196": PublishedDataset(read_cars196, {"train": (8_054, 98), "test": (8_131, 98)}),
    "sop": PublishedDataset(read_sop, {"train": (59_551, 11_318), "test": (60_502, 11_316)}),
    "inshop": PublishedDataset(read_inshop, {"train": (25_882, 3_997), "test": (26_830, 3_985)}),
    "cifar10": PublishedDataset(read_cifar10, {"train": (50_000, 10), "test": (10_000, 10)}),
    "cifar100": PublishedDataset(read_cifar100, {"train": (50_000, 100), "test": (10_000, 100)}),
    "imagenet100": PublishedDataset(
        read_imagenet100, {"train": (126_689, 100), "val": (5_000, 100)}
    ),
    "imagenet": PublishedDataset(
        read_imagenet, {"train": (1_281_167, 1_000), "val": (50_000, 1_000)}
    ),
}


@dataclass(frozen=True)
class PreparedPart:
    """A folder that was laid out.

    Attributes:
        name: name of the part, such as "train".
        warning: how its size differs from the published one; None if it does not.
    """

    name: str
    folder: Path
    images: int
    classes: int
    warning: str | None


def prepare(dataset: str, source: Path, target: Path) -> list[PreparedPart]:
    """Write the images of a published data set as `target`/<part>/<class>/<file>.

    Files become hard links, or copies where links are impossible; pixels become PNG. Idempotent: an
    interrupted call leaves hidden folders, which the next one completes, and files that are there already stay.

    Args:
        dataset: a name in `PUBLISHED`.
        source: folder or archive as its authors distribute it.

    Raises:
        ValueError: a file is missing or damaged; the message names it.
        OSError: a file cannot be written.
    """
    published = PUBLISHED[dataset]
    if not source.exists():
        raise ValueError(f"{source} does not exist")
    classes: dict[str, Counter[str]] = {part: Counter() for part in published.sizes}
    written: set[Path] = set()
    # A part gets its name when it is whole.
    hidden = {part: target / f".{part}.partial" for part in classes if not (target / part).exists()}
    for image in published.read(source):
        names = (image.class_name, *image.name.split("/"))
        folder = hidden.get(image.part, target / image.part)
        file = folder.joinpath(*map(_component, names))
        if file in written:
            raise ValueError(f"two images would become {file}; is {source} the original?")
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(image, file)
        written.add(file)
        classes[image.part][image.class_name] += 1
    for part, folder in hidden.items():
        if folder.exists():
            folder.rename(target / part)
    return [
        PreparedPart(
            part, target / part, count.total(), len(count), _difference(dataset, part, count)
        )
        for part, count in classes.items()
    ]


def _component(name: str) -> str:
    """Check that a name from a list stays in its folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot be the name of a file or class")
    return name


def _write(image: PublishedImage, file: Path) -> None:
    if isinstance(image.content, PackedFile):
        if not _is_there(file, image.content.size):
            partial = _partial(file)
            partial.write_bytes(image.content.read())
            partial.replace(file)
        return
    if not isinstance(image.content, Path):
        if not file.exists():
            partial = _partial(file)
            Image.fromarray(image.content).save(partial, format="PNG")
            partial.replace(file)
        return
    original = Path(os.path.realpath(image.content))
    if not original.is_file():
        raise ValueError(f"{image.content} is missing; the lists of the data set name it")
    if _is_there(file, original.stat().st_size):
        return
    partial = _partial(file)
    try:
        os.link(original, partial)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(original, partial)
    partial.replace(file)


def _is_there(file: Path, size: int) -> bool:
    """Whether the image was written before; a ValueError if its place has a file of another size."""
    if not file.exists():
        return False
    if file.stat().st_size != size:
        raise ValueError(
            f"{file} exists and is not the image of the data set. Choose another TARGET, or remove it."
        )
    return True


def _partial(file: Path) -> Path:
    """A hidden name beside the file, which no ingest reads."""
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    return partial


def _difference(dataset: str, part: str, count: Counter[str]) -> str | None:
    expected = PUBLISHED[dataset].sizes[part]
    if (count.total(), len(count)) == expected:
        return None
    images, classes = expected
    return (
        f"{part}: the published part has {images:,} images of {classes:,} classes; "
        f"found {count.total():,} of {len(count):,}"
    )
