"""In-shop Clothes Retrieval (Liu et al. 2016, DeepFashion): 7,982 items of clothing."""

from collections.abc import Iterator
from pathlib import Path

from dasl_core.data.published.image import PublishedImage
from dasl_core.data.published.lists import folder_with, read_rows

PARTS = ("train", "query", "gallery")


def read_inshop(source: Path) -> Iterator[PublishedImage]:
    """Read the authors' split: items to train, and other items to test, in folders of queries and gallery.

    Args:
        source: folder with `Eval/list_eval_partition.txt` (or that file itself) and the unpacked `img`,
            either beside it or in `Img`.

    Raises:
        ValueError: the list is missing or damaged.
    """
    name = "list_eval_partition.txt"
    lists = folder_with(source, name, "Eval")
    images = folder_with(source, "img", "Img")
    for path, item, part in read_rows(lists / name, 3, skip=2):
        if part not in PARTS:
            raise ValueError(f"{lists / name}: unknown part {part!r}; expected one of {PARTS}")
        # Items have images of equal names in several folders, such as WOMEN/Dresses.
        flat = "-".join(Path(path).parts[1:])
        if part == "train":
            yield PublishedImage("train", item, flat, images / path)
        else:
            yield PublishedImage("test", item, f"{part}/{flat}", images / path)
