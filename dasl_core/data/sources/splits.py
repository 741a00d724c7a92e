"""Which folders and files hold a split of a data set, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


# As Hugging Face, WebDataset and others name the files of a split: train-00000-of-00012.parquet, val-000.tar,
# birds-train-000.tar, birds_val.tar.
_OF_FILE = re.compile(
    rf"(?:^|[/_.-])({'|'.join(sorted(TRAIN_WORDS | TEST_WORDS))})(?:[-_.]?\d[^/]*|\.[^/.]+)$",
    re.IGNORECASE,
)


def split_of_file(name: str) -> str | None:
    """Return the split that a file of many images belongs to, by its name; None if it names none."""
    found = _OF_FILE.search(name)
    return None if found is None else found[1]


def choose_one(location: str, splits: Sequence[str]) -> str:
    """Return the sentence that refuses a source with several splits of which none is chosen."""
    return (
        f"{location} is divided into splits: {', '.join(splits)}; choose one of them, such as --split {splits[0]} "
        "(source.split in the API)"
    )


def folders_of_splits(paths: list[str]) -> list[str]:
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
