"""CUB-200-2011 (Wah et al. 2011): 200 species of birds."""

from collections.abc import Iterator
from pathlib import Path

from dasl_core.data.published.image import PublishedImage
from dasl_core.data.published.lists import folder_with, read_rows

TRAIN_CLASSES = 100


def read_cub200(source: Path) -> Iterator[PublishedImage]:
    """Read the split of metric learning: the first 100 classes to train, the other 100 to test.

    `train_test_split.txt` divides the images of each class for classification and is not used.

    Args:
        source: the folder CUB_200_2011 of the archive, or the one that contains it.

    Raises:
        ValueError: a list is missing, or does not fit the others.
    """
    folder = folder_with(source, "images.txt", "CUB_200_2011")
    names = {int(number): name for number, name in read_rows(folder / "classes.txt", 2)}
    classes = {
        image: int(number) for image, number in read_rows(folder / "image_class_labels.txt", 2)
    }
    for image, path in read_rows(folder / "images.txt", 2):
        number = classes.get(image)
        if number is None or number not in names:
            raise ValueError(
                f"{folder / 'images.txt'}: image {image} has no class in image_class_labels.txt and "
                "classes.txt"
            )
        part = "train" if number <= TRAIN_CLASSES else "test"
        file = folder / "images" / path
        yield PublishedImage(part, names[number], file.name, file)
