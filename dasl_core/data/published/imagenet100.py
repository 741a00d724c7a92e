"""ImageNet-100 (Tian et al. 2020, CMC): 100 classes of ImageNet."""

from collections.abc import Iterator
from pathlib import Path

from dasl_core.data.published.lists import PublishedImage
from dasl_core.vocabulary import is_image_name

CLASSES = Path(__file__).with_name("imagenet100.txt")


def read_imagenet100(source: Path) -> Iterator[PublishedImage]:
    """Read the images of CMC's 100 classes.

    Args:
        source: ImageNet as a tree: train/<class>/<image> and val/<class>/<image>, with classes named by
            their WordNet ids, such as n02869837.

    Raises:
        ValueError: the folder of a class is missing.
    """
    lines = CLASSES.read_text(encoding="utf-8").splitlines()
    classes = [line for line in lines if not line.startswith("#")]
    for part in ("train", "val"):
        for name in classes:
            folder = source / part / name
            if not folder.is_dir():
                raise ValueError(
                    f"{folder} is missing; expected ImageNet with a folder for each class in train and val"
                )
            for file in sorted(folder.iterdir()):
                if is_image_name(file.name):
                    yield PublishedImage(part, name, file.name, file)
