"""Cars-196 (Krause et al. 2013): 196 models of cars."""

from collections.abc import Iterator
from pathlib import Path

from dasl_core.data.published.image import PublishedImage
from dasl_core.data.published.lists import folder_with

TRAIN_CLASSES = 98


def read_cars196(source: Path) -> Iterator[PublishedImage]:
    """Read the split of metric learning: the first 98 classes to train, the other 98 to test.

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
            part = "train" if number <= TRAIN_CLASSES else "test"
            # A name may have a slash: "Ram C/V Cargo Van Minivan 2012".
            class_name = f"{number:03d}.{names[number - 1]}".replace("/", "-").replace(" ", "_")
            image = folder / path
            yield PublishedImage(part, class_name, image.name, image)
    except (MatReadError, LookupError, ValueError, TypeError) as error:
        raise ValueError(f"{file} is not the list of Cars-196: {error!r}") from error
