"""Detection of a data set's splits by the names of folders and files."""

import re
from collections.abc import Sequence, Set

# Words in the names of folders of splits: "val2017", "test_images".
TRAIN_WORDS = frozenset({"train", "training", "trainset", "trainval"})
# fmt: off
TEST_WORDS = frozenset({
    "test", "testing", "testset", "val", "valid", "validation", "valset", "dev", "eval", "evaluation",
    "holdout", "unlabeled", "unlabelled",
})
# Words that do not change a name's meaning.
FILLERS = frozenset({
    "image", "images", "img", "imgs", "rgb", "photo", "photos", "picture", "pictures",
    "set", "split", "data", "dataset", "folder", "jpg", "jpeg", "png",
})
# Words in the names of folders and files that hold what belongs to the pixels of other images.
MASK_WORDS = frozenset({
    "mask", "masks", "label", "labels", "annotation", "annotations", "annot", "trimap", "trimaps", "gt", "groundtruth",
    "truth", "seg", "segmentation", "segmentations", "depth", "matte", "mattes", "overlay", "overlays",
})
# Other words in the names of such folders: "SegmentationClass".
_MASK_KINDS = frozenset({"class", "object", "instance", "semantic", "binary", "color", "ground"})
# fmt: on
# Files of a mask and of an image; their first group is the same if they belong together: a_mask.png, a.jpg, a.rgb.png.
MASK_OF = re.compile(rf"(.+)[._-](?:{'|'.join(sorted(MASK_WORDS))})\.\w+", re.IGNORECASE)
IMAGE_OF = re.compile(rf"(.+?)(?:[._-](?:{'|'.join(sorted(FILLERS))}))?\.\w+", re.IGNORECASE)


# File names of splits in Hugging Face, WebDataset and others: train-00000-of-00012.parquet, val-000.tar,
# birds-train-000.tar, birds_val.tar.
_OF_FILE = re.compile(
    rf"(?:^|[/_.-])({'|'.join(sorted(TRAIN_WORDS | TEST_WORDS))})(?:[-_.]?\d[^/]*|\.[^/.]+)$",
    re.IGNORECASE,
)


def file_split(name: str) -> str | None:
    """Return the split in the name of a file of many images, or None."""
    match = _OF_FILE.search(name)
    return None if match is None else match[1]


def choose_one(location: str, splits: Sequence[str]) -> str:
    """Return the error message for a source with several splits and no request for one."""
    first = next((split for split in splits if _words(split) & TRAIN_WORDS), splits[0])
    return (
        f"{location} is divided into splits: {', '.join(splits)}; register each as a data set of its own, so that test images "
        f"stay out of training, such as with --split {first} (source.split in the API)"
    )


def split_folders(paths: list[str]) -> list[str]:
    """Find the folders of splits: at the root's first level, or inside its only folder.

    Paths are relative to the root. A class may also be called "train" or "test tube". So there must be
    two folders that differ only in the word for the split, or only folders of splits.
    """
    folders = {path.rpartition("/")[0] for path in paths}
    outer, inside = "", folders - {""}
    while inside:
        names = sorted({folder.partition("/")[0] for folder in inside})
        kinds = {name: kind for name in names if (kind := _parse_split_name(name)) is not None}
        only_splits = not outer and "" not in folders and len(kinds) == len(names)
        if folders_of_tests({*names}) or (
            only_splits and not any(rest for _, rest in kinds.values())
        ):
            return [outer + name for name in kinds]
        if len(names) > 1:
            break
        outer += f"{names[0]}/"
        inside = {below for folder in inside if (below := folder.partition("/")[2])}
    return []


def folders_of_tests(folders: Set[str]) -> list[str]:
    """Return the folders of test images, by their names, if there is one of training images beside them."""
    kinds = {name: kind for name in folders if (kind := _parse_split_name(name)) is not None}
    trained = {rest for is_train, rest in kinds.values() if is_train}
    return [name for name, (is_train, rest) in kinds.items() if not is_train and rest in trained]


def image_folders(folders: Set[str]) -> list[str]:
    """Return the folders of images if all others hold their masks, by their names; nothing if there are no others."""
    usual = FILLERS | TRAIN_WORDS | TEST_WORDS
    images = [folder for folder in folders if set() < _words(folder) <= usual]
    masks = [folder for folder in folders if _words(folder) & MASK_WORDS]
    is_pair = all(_words(folder) <= usual | MASK_WORDS | _MASK_KINDS for folder in masks)
    return sorted(images) if masks and is_pair and len(images + masks) == len(folders) else []


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def _parse_split_name(name: str) -> tuple[bool, frozenset[str]] | None:
    """Return whether a folder's name means a training split, and its other words; None if it names no split."""
    words = _words(name) - FILLERS
    if not words & (TRAIN_WORDS | TEST_WORDS):
        return None
    return bool(words & TRAIN_WORDS), frozenset(words - TRAIN_WORDS - TEST_WORDS)
