"""Ingest: find, decode and check every image of a folder once.

A broken file never fails an ingest, let alone a job: it is skipped and listed with the reason.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dasl_core.data.bounded_map import AHEAD_PER_THREAD, bounded_map
from dasl_core.data.decode import BYTES_PER_PIXEL, ValueRange, decode_with_range
from dasl_core.data.index import DatasetIndex, DeepImages, Skipped, inside
from dasl_core.data.memory_budget import MemoryBudget
from dasl_core.machine import available_memory, usable_cores
from dasl_core.spec.locations import CONTAINS_PRIVATE, EVERY_FOLDER, OUTSIDE, ReadableFolders

# fmt: off
EXTENSIONS = frozenset({
    "jpg", "jpeg", "jpe", "jfif", "png", "bmp", "dib", "webp", "gif", "tif", "tiff",
    "ppm", "pgm", "pbm", "pnm", "jp2", "j2k", "avif",
})
# fmt: on

# Names of folders that hold a split and not a class, as whole words: "val2017", "test_images".
TRAIN_WORDS = frozenset({"train", "training", "trainset", "trainval"})
# fmt: off
TEST_WORDS = frozenset({
    "test", "testing", "testset", "val", "valid", "validation", "valset", "dev", "eval", "evaluation",
})
# Words that do not change the meaning of such a name.
FILLERS = frozenset({
    "image", "images", "img", "imgs", "photo", "photos", "picture", "pictures",
    "set", "split", "data", "dataset", "folder", "jpg", "jpeg", "png",
})
# fmt: on

# The images that are decoded at the same time may take this share of the memory that is free at the start: another
# ingest and the drivers of trainings, which an exhausted memory would end, run on the same node.
_SHARE_OF_MEMORY = 0.25

OnProgress = Callable[[int, int], None]
"""Called with the number of images that were decoded, and of those that were found so far."""


def _no_progress(decoded: int, total: int) -> None: ...


# Width and height of an image, and the values that one of more than 8 bits uses.
_Usable = tuple[tuple[int, int], ValueRange | None]


@dataclass(frozen=True)
class Listing:
    """The files of a folder, before any is decoded.

    Attributes:
        root: the folder, with every link followed.
        paths: files with the name of an image, sorted; relative to `root`, with forward slashes.
        skipped: files and folders that may not be read.
        num_ignored: files with other names.
    """

    root: Path
    paths: list[str]
    skipped: list[Skipped]
    num_ignored: int

    def digest(self) -> str:
        """A digest that changes when an image is added, removed, changed or made readable.

        It covers path, size, modification time and permissions of each file, and reads none of them.
        """
        state = hashlib.blake2b(digest_size=16)
        state.update(f"{self.root}\0{self.num_ignored}\n".encode())
        for entry in self.skipped:
            state.update(f"{entry.path}\0{entry.reason}\n".encode())
        for path in self.paths:
            try:
                stat = os.stat(self.root / path)
                facts = f"{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_mode}"
            except OSError as error:  # ingest lists it with this reason
                facts = f"{error.strerror}"
            state.update(f"{path}\0{facts}\n".encode())
        return state.hexdigest()


def ingest_folder(
    root: str | os.PathLike[str],
    workers: int | None = None,
    *,
    allowed: ReadableFolders = EVERY_FOLDER,
    on_progress: OnProgress = _no_progress,
) -> DatasetIndex:
    """Find, check and label the images under a folder.

    * The walk is recursive. Hidden files and folders (leading dot) are skipped; files without the
      extension of an image (`EXTENSIONS`) are ignored and counted.
    * Every other file is decoded completely. It is skipped, with a reason, when it cannot be, when
      it is no regular file, when its name is not UTF-8, and when it is a link that leads out of the
      folder. Links to folders are not followed.
    * Labels are the names of the first-level folders, if every usable image lies in one and there
      are at least two; otherwise the data set has no labels, which pretraining does not need.
    * The order is that of the sorted relative paths, the same on every machine.

    Args:
        root: the folder.
        workers: decoding threads (Pillow decodes outside Python's lock); None: one per usable core. Those whose
            images do not fit into a quarter of the free memory together wait.
        allowed: folders that may be read, in which `root` must lie with all that is inside.
        on_progress: called in this thread after each file that is found or decoded.

    Raises:
        ValueError: `root` is missing, not a folder, not readable, not an allowed folder,
            holds no usable image, or is divided into splits ("train", "test", ...): these are data
            sets of their own.
    """
    listing = list_folder(root, allowed=allowed, on_progress=on_progress)
    return ingest_listing(listing, workers, on_progress=on_progress)


def list_folder(
    root: str | os.PathLike[str],
    *,
    allowed: ReadableFolders = EVERY_FOLDER,
    on_progress: OnProgress = _no_progress,
) -> Listing:
    """List the files of a folder for `ingest_listing`; see `ingest_folder`.

    Raises:
        ValueError: `root` is missing, not a folder, not readable, or not an allowed folder.
    """
    if not os.fspath(root):
        raise ValueError("root is empty; expected the path of a folder of images")
    folder = _checked_root(root, allowed)
    paths: list[str] = []
    skipped: list[Skipped] = []
    num_ignored = 0
    for path, reason in _walk(folder, ""):
        if reason is not None:
            skipped.append(Skipped(_printable(path), reason))
        elif os.path.splitext(path)[1][1:].lower() in EXTENSIONS:
            paths.append(path)
            on_progress(0, len(paths))
        else:
            num_ignored += 1
    skipped.sort(key=lambda entry: entry.path)
    return Listing(folder, sorted(paths), skipped, num_ignored)


def ingest_listing(
    listing: Listing, workers: int | None = None, *, on_progress: OnProgress = _no_progress
) -> DatasetIndex:
    """Decode, check and label the images of a listing; see `ingest_folder`.

    Raises:
        ValueError: no image is usable, or the folder is divided into splits.
    """
    folder, num_ignored = listing.root, listing.num_ignored
    paths: list[str] = []
    sizes: list[tuple[int, int]] = []
    ranges: list[ValueRange] = []
    skipped = [*listing.skipped]
    outcomes = _decode_all(folder, listing.paths, workers)
    for number, (path, outcome) in enumerate(zip(listing.paths, outcomes, strict=True), start=1):
        on_progress(number, len(listing.paths))
        if isinstance(outcome, str):
            skipped.append(Skipped(path, outcome))
        else:
            size, value_range = outcome
            paths.append(path)
            sizes.append(size)
            if value_range is not None:
                ranges.append(value_range)
    skipped.sort(key=lambda entry: entry.path)
    if not paths:
        raise ValueError(_no_images(folder, skipped, num_ignored))

    if splits := _splits(paths):
        raise ValueError(
            f"{folder} is divided into splits, not classes; register each as a data set of its own, "
            f"so that test images stay out of training: {', '.join(str(folder / s) for s in splits)}"
        )
    labels, class_names = _labels(paths)
    return DatasetIndex(
        root=folder,
        paths=paths,
        labels=labels,
        class_names=class_names,
        sizes=np.array(sizes, dtype=np.int32),
        skipped=skipped,
        num_ignored=num_ignored,
        deep_images=DeepImages.of(ranges),
    )


def _checked_root(root: str | os.PathLike[str], allowed: ReadableFolders) -> Path:
    try:
        folder = Path(os.path.realpath(root))
        # Checked before anything else: whether a forbidden folder exists must not be revealed.
        if not allowed.allow(folder):
            raise ValueError(f"it {OUTSIDE}")
        if not allowed.allow_tree(folder):
            raise ValueError(f"it {CONTAINS_PRIVATE}")
        os.listdir(folder)
    except FileNotFoundError:
        raise ValueError(f"{root} does not exist; expected a folder of images") from None
    except NotADirectoryError:
        raise ValueError(f"{root} is a file; expected a folder of images") from None
    except (OSError, RuntimeError, ValueError) as error:
        detail = getattr(error, "strerror", None) or error
        raise ValueError(f"{root} cannot be read as a folder of images: {detail}") from error
    return folder


def _walk(root: Path, folder: str) -> Iterator[tuple[str, str | None]]:
    """Yield (relative path, None or the reason to skip it) for all entries below `folder` not hidden.

    Iterative, since folders can be nested deeper than Python's stack.
    """
    pending = [folder]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(root / folder) as scan:
                entries = list(scan)
        except OSError as error:
            yield folder, f"the folder cannot be read: {error.strerror or error}"
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = f"{folder}/{entry.name}" if folder else entry.name
            reason = _skip_reason(root, entry)
            if reason is None and entry.is_dir(follow_symlinks=False):
                pending.append(path)
            else:
                yield path, reason


def _skip_reason(root: Path, entry: os.DirEntry[str]) -> str | None:
    """Why an entry of the folder may not be read; None if it may."""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    try:
        if entry.is_symlink():
            target = Path(entry.path).resolve(strict=True)
            if not target.is_relative_to(root):
                return "it is a link that leads out of the data set's folder"
            if target.is_dir():
                return "it is a link to a folder, and such links are not followed"
        # Reading anything else, such as a pipe, could block forever.
        if not (entry.is_file() or entry.is_dir(follow_symlinks=False)):
            return "it is not a regular file"
    except FileNotFoundError:
        return "it is a link to something that does not exist"
    except (OSError, RuntimeError) as error:
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    return None


def _decode_all(root: Path, paths: list[str], workers: int | None) -> Iterator[_Usable | str]:
    """Decode all images; return the facts of each, or why it cannot be used, in order."""

    def check(path: str) -> _Usable | str:
        return _usable_or_reason(root, path, memory)

    threads = workers or usable_cores()
    memory = MemoryBudget(int(_SHARE_OF_MEMORY * available_memory()))
    with ThreadPoolExecutor(threads, "decode") as pool:
        yield from bounded_map(pool, check, paths, AHEAD_PER_THREAD * threads)


def _usable_or_reason(root: Path, path: str, memory: MemoryBudget) -> _Usable | str:
    with ExitStack() as held:

        def wait_for_memory(pixels: int) -> None:
            held.enter_context(memory.lend(pixels * BYTES_PER_PIXEL))

        try:
            pixels, value_range = decode_with_range(inside(root, path), before_load=wait_for_memory)
        except ValueError as error:
            return str(error)
        height, width, _ = pixels.shape
        del pixels  # while the memory is still held
        return (width, height), value_range


def _splits(paths: list[str]) -> list[str]:
    """Find the folders that hold splits: at the root's first level, or in the only folder there.

    Paths are relative to the root. A class may also be called "train" or "test tube". So there must be
    two folders that differ only in the word for the split, or only folders of splits.
    """
    folders = {path.rpartition("/")[0] for path in paths}
    outer, inside = "", folders - {""}
    while inside:
        names = sorted({folder.partition("/")[0] for folder in inside})
        kinds = {name: kind for name in names if (kind := _kind_of_split(name)) is not None}
        trained = {rest for is_train, rest in kinds.values() if is_train}
        tested = {rest for is_train, rest in kinds.values() if not is_train}
        only_splits = not outer and "" not in folders and len(kinds) == len(names)
        if trained & tested or (only_splits and not any(rest for _, rest in kinds.values())):
            return [outer + name for name in kinds]
        if len(names) > 1:
            break
        outer += f"{names[0]}/"
        inside = {below for folder in inside if (below := folder.partition("/")[2])}
    return []


def _kind_of_split(name: str) -> tuple[bool, frozenset[str]] | None:
    """Whether a folder of this name is a training split, and the other words of the name.

    None if no word means a split.
    """
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)} - FILLERS
    if not words & (TRAIN_WORDS | TEST_WORDS):
        return None
    return bool(words & TRAIN_WORDS), frozenset(words - TRAIN_WORDS - TEST_WORDS)


def _labels(paths: list[str]) -> tuple[list[int] | None, list[str]]:
    if any("/" not in path for path in paths):
        return None, []
    first_folders = [path.partition("/")[0] for path in paths]
    class_names = sorted(set(first_folders))
    if len(class_names) < 2:
        return None, []
    number = {name: index for index, name in enumerate(class_names)}
    return [number[name] for name in first_folders], class_names


def _no_images(root: Path, skipped: list[Skipped], num_ignored: int) -> str:
    message = f"{root} holds no usable image"
    if skipped:
        message += f"; {len(skipped)} skipped, such as {skipped[0].path} ({skipped[0].reason})"
    if num_ignored:
        message += f"; {num_ignored} other files ignored"
    return f"{message}; expected files that end in {', '.join(sorted(EXTENSIONS))}"


def _printable(path: str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")
