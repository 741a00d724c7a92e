"""Stanford Online Products (Song et al. 2016): 22,634 products."""

from collections.abc import Iterator
from pathlib import Path

from dasl_core.data.published.image import PublishedImage
from dasl_core.data.published.lists import folder_with, read_rows


def read_sop(source: Path) -> Iterator[PublishedImage]:
    """Read the authors' split by products.

    Args:
        source: the folder Stanford_Online_Products of the archive, or the one that contains it.

    Raises:
        ValueError: a list is missing or damaged.
    """
    folder = folder_with(source, "Ebay_train.txt", "Stanford_Online_Products")
    for part in ("train", "test"):
        for _, product, _, path in read_rows(folder / f"Ebay_{part}.txt", 4, skip=1):
            file = folder / path
            yield PublishedImage(part, f"{int(product):05d}", file.name, file)
