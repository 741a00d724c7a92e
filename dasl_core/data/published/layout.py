"""Lay out a published data set as folders that jobs and `dasl train` take as data sets."""

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dasl_core.data.published.catalog import PUBLISHED
from dasl_core.data.published.lists import PublishedImage


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
    interrupted call is completed by the next one, and files that are there already stay.

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
    for image in published.read(source):
        names = (image.class_name, *image.name.split("/"))
        file = target.joinpath(image.part, *map(_component, names))
        if file in written:
            raise ValueError(f"two images would become {file}; is {source} the original?")
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(image, file)
        written.add(file)
        classes[image.part][image.class_name] += 1
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
    if not isinstance(image.content, Path):
        if not file.exists():
            partial = _partial(file)
            Image.fromarray(image.content).save(partial, format="PNG")
            partial.replace(file)
        return
    original = Path(os.path.realpath(image.content))
    if not original.is_file():
        raise ValueError(f"{image.content} is missing; the lists of the data set name it")
    if file.exists() and file.stat().st_size == original.stat().st_size:
        return
    partial = _partial(file)
    try:
        os.link(original, partial)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(original, partial)
    partial.replace(file)


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
