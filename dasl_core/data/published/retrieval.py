"""Data sets of metric learning: CUB-200-2011, Cars-196, Stanford Online Products and In-shop Clothes Retrieval."""

from collections.abc import Iterator
from pathlib import Path

from dasl_core.data.published.lists import PublishedImage, folder_with, read_rows

TRAIN_CLASSES_OF_CUB200, TRAIN_CLASSES_OF_CARS196 = 100, 98
PARTS_OF_INSHOP = ("train", "query", "gallery")


def read_cub200(source: Path) -> Iterator[PublishedImage]:
    """Read CUB-200-2011 (Wah et al. 2011), species of birds: the first 100 classes to train, the other 100 to test.

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
        part = "train" if number <= TRAIN_CLASSES_OF_CUB200 else "test"
        file = folder / "images" / path
        yield PublishedImage(part, names[number], file.name, file)


def read_cars196(source: Path) -> Iterator[PublishedImage]:
    """Read Cars-196 (Krause et al. 2013), models of cars: the first 98 classes to train, the other 98 to test.

    Args:
        source: folder with `cars_annos.mat` and `car_ims`, the list and the images of both of the
            authors' splits, which metric learning divides otherwise.

    Raises:
        ValueError: `cars_annos.mat` is missing or has other fields, or SciPy is not installed.
    """
    folder = folder_with(source, "cars_annos.mat")
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ModuleNotFoundError as error:
        raise ValueError(
            "cars_annos.mat is a MATLAB file; to read it, pip install scipy"
        ) from error
    file = folder / "cars_annos.mat"
    try:
        content = loadmat(str(file))
        names = [str(name.item()) for name in content["class_names"].ravel()]
        for row in content["annotations"].ravel():
            path, number = str(row["relative_im_path"].item()), int(row["class"].item())
            part = "train" if number <= TRAIN_CLASSES_OF_CARS196 else "test"
            # A name may have a slash: "Ram C/V Cargo Van Minivan 2012".
            class_name = f"{number:03d}.{names[number - 1]}".replace("/", "-").replace(" ", "_")
            image = folder / path
            yield PublishedImage(part, class_name, image.name, image)
    except (MatReadError, LookupError, ValueError, TypeError) as error:
        raise ValueError(f"{file} is not the list of Cars-196: {error!r}") from error


def read_sop(source: Path) -> Iterator[PublishedImage]:
    """Read Stanford Online Products (Song et al. 2016): 22,634 products, in the authors' split.

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


def read_inshop(source: Path) -> Iterator[PublishedImage]:
    """Read In-shop Clothes Retrieval (Liu et al. 2016, DeepFashion): 7,982 items of clothing, in the authors' split.

    Some items are to train, and others to test, in folders of queries and gallery.

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
        if part not in PARTS_OF_INSHOP:
            raise ValueError(
                f"{lists / name}: unknown part {part!r}; expected one of {PARTS_OF_INSHOP}"
            )
        # Items have images of equal names in several folders, such as WOMEN/Dresses.
        flat = "-".join(Path(path).parts[1:])
        if part == "train":
            yield PublishedImage("train", item, flat, images / path)
        else:
            yield PublishedImage("test", item, f"{part}/{flat}", images / path)
