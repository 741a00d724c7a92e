"""ImageNet-1K (Russakovsky et al. 2015, ILSVRC2012): the tar files of its authors."""

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dasl_core.data.published.lists import PackedFile, PublishedImage

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_WORDNET_ID = re.compile(r"n\d{8}")
_VAL_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
# The largest image has 15 MB; the lists of the development kit have less than 1 MB.
_LARGEST = 64 << 20


def read_imagenet(source: Path) -> Iterator[PublishedImage]:
    """Read the images of both parts, one at a time; those of the training part from a tar for each class in a tar.

    Args:
        source: folder with the tar files `TRAIN` and `VAL`, and `DEVKIT`, which has the classes of the latter.

    Raises:
        ValueError: a file is missing or damaged, or is not what the authors distribute.
    """
    for name in (TRAIN, VAL, DEVKIT):
        if not (source / name).is_file():
            raise ValueError(
                f"{source / name} is missing; expected the authors' files {TRAIN}, {VAL} and {DEVKIT}. Images that are "
                "sorted already, train/<class> and val/<class>, need no preparation"
            )
    classes = _val_classes(source / DEVKIT)
    try:
        with tarfile.open(source / TRAIN, "r:") as whole:
            for member in whole:
                wordnet_id = member.name.removesuffix(".tar")
                packed = whole.extractfile(member) if member.isfile() else None
                if packed is None or not _WORDNET_ID.fullmatch(wordnet_id):
                    raise ValueError(
                        f"{source / TRAIN} has {member.name!r}; expected n<digits>.tar"
                    )
                with tarfile.open(fileobj=packed, mode="r:") as of_class:
                    for image in of_class:
                        yield _image("train", wordnet_id, of_class, image)
    except tarfile.TarError as error:
        raise ValueError(f"{source / TRAIN} is damaged, or no tar of tars: {error}") from error
    try:
        with tarfile.open(source / VAL, "r:") as whole:
            for image in whole:
                found = _VAL_NAME.fullmatch(image.name)
                if found is None or not 1 <= int(found[1]) <= len(classes):
                    raise ValueError(
                        f"{source / VAL} has {image.name!r}; expected ILSVRC2012_val_<number>.JPEG, up to {len(classes)}"
                    )
                yield _image("val", classes[int(found[1]) - 1], whole, image)
    except tarfile.TarError as error:
        raise ValueError(f"{source / VAL} is damaged, or no tar: {error}") from error


def _image(
    part: str, class_name: str, archive: tarfile.TarFile, member: tarfile.TarInfo
) -> PublishedImage:
    if not member.isfile() or member.size > _LARGEST:
        raise ValueError(
            f"{archive.name!r}: {member.name!r} is no file of at most {_LARGEST:,} bytes; expected an image"
        )
    content = PackedFile(member.size, partial(_content, archive, member))
    return PublishedImage(part, class_name, member.name, content)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo | str) -> bytes:
    try:
        file = archive.extractfile(member)
        return b"" if file is None else file.read(_LARGEST)
    except tarfile.TarError as error:  # such as without its end
        raise ValueError(f"{archive.name!r} is damaged: {error}") from error


def _val_classes(devkit: Path) -> list[str]:
    """Return the WordNet id of each image of the validation part, by its number."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ModuleNotFoundError as error:
        raise ValueError(f"{devkit} has a MATLAB file; to read it, pip install scipy") from error
    folder = devkit.name.removesuffix(".tar.gz") + "/data"
    try:
        with gzip.open(devkit) as packed:
            content = packed.read(_LARGEST)  # to the end, where the checksum is
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            meta = loadmat(io.BytesIO(_content(archive, f"{folder}/meta.mat")))["synsets"]
            numbers = _content(archive, f"{folder}/ILSVRC2012_validation_ground_truth.txt").split()
        wordnet_ids = {
            int(row["ILSVRC2012_ID"].item()): str(row["WNID"].item()) for row in meta.ravel()
        }
        return [wordnet_ids[int(number)] for number in numbers]
    except (
        *(tarfile.TarError, zlib.error, OSError, EOFError),
        *(MatReadError, LookupError, ValueError, TypeError, RecursionError),
    ) as error:
        raise ValueError(f"{devkit} is not the development kit of ILSVRC2012: {error!r}") from error
