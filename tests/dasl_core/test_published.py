"""Published data sets: the files of their authors become folders of classes, in the published split."""

import gzip
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dasl_core.data import ingest_folder
from dasl_core.data.published import prepare
from dasl_core.data.published.imagenet100 import CLASSES
from tests.dasl_core.image_files import as_tar


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(path)


def cub200(source: Path) -> None:
    folder = source / "CUB_200_2011"
    classes = {1: "001.Albatross", 100: "100.Pelican", 101: "101.White_Pelican"}
    images = [
        (number, f"{name}/{name}_{i}.jpg") for number, name in classes.items() for i in (7, 9)
    ]
    for _, path in images:
        picture(folder / "images" / path)
    (folder / "classes.txt").write_text("".join(f"{n} {name}\n" for n, name in classes.items()))
    rows = list(enumerate(images, 1))
    (folder / "images.txt").write_text("".join(f"{i} {path}\n" for i, (_, path) in rows))
    labels = "".join(f"{i} {number}\n" for i, (number, _) in rows)
    (folder / "image_class_labels.txt").write_text(labels)


def cars196(source: Path) -> None:
    from scipy.io import savemat

    classes = [f"Car {number}" for number in range(1, 197)]
    classes[97] = "Ram C/V Minivan 2012"
    fields = ["relative_im_path", *("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"), "class", "test"]
    annotations = np.zeros((1, 4), dtype=[(field, object) for field in fields])
    for column, number in enumerate((1, 98, 99, 196)):
        path = f"car_ims/{column + 1:06d}.jpg"
        picture(source / path)
        annotations[0, column] = (path, 1, 1, 4, 4, number, column % 2)
    names = np.array([classes], dtype=object)
    savemat(source / "cars_annos.mat", {"annotations": annotations, "class_names": names})


def sop(source: Path) -> None:
    folder = source / "Stanford_Online_Products"
    header = "image_id class_id super_class_id path\n"
    for part, rows in {"train": [(1, 1), (2, 1), (3, 2)], "test": [(4, 11319)]}.items():
        lines = []
        for image, product in rows:
            path = f"bicycle_final/{product}_{image}.JPG"
            picture(folder / path)
            lines.append(f"{image} {product} 1 {path}\n")
        (folder / f"Ebay_{part}.txt").write_text(header + "".join(lines))


def inshop(source: Path) -> None:
    rows = [
        ("WOMEN/Dresses/id_01/02_1_front.jpg", "id_01", "train"),
        ("WOMEN/Shorts/id_01/02_1_front.jpg", "id_01", "train"),
        ("MEN/Denim/id_02/01_2_side.jpg", "id_02", "query"),
        ("MEN/Denim/id_02/01_3_back.jpg", "id_02", "gallery"),
    ]
    for path, _, _ in rows:
        picture(source / "Img" / "img" / path)
    lines = [f"img/{path}   {item}  {part}\n" for path, item, part in rows]
    (source / "Eval").mkdir()
    text = f"{len(rows)}\nimage_name item_id evaluation_status\n" + "".join(lines)
    (source / "Eval" / "list_eval_partition.txt").write_text(text)


def as_python_2(content: object) -> bytes:
    """Pickle as Python 2 with NumPy 1 did, up to the type of the strings."""
    return pickle.dumps(content, 3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar_batch(labels: list[int], key: bytes) -> dict[bytes, object]:
    values = np.arange(len(labels) * 3072) // 1024 % 3 * 100  # red 0, green 100, blue 200
    return {b"data": values.reshape(len(labels), 3072).astype(np.uint8), key: labels}


def cifar10(source: Path) -> None:
    names: dict[bytes, object] = {b"label_names": [b"airplane", b"automobile"]}
    files = {f"data_batch_{i}": cifar_batch([0, 1], b"labels") for i in range(1, 6)}
    files |= {"test_batch": cifar_batch([1], b"labels"), "batches.meta": names}
    packed = [(f"cifar-10-batches-py/{name}", as_python_2(each)) for name, each in files.items()]
    (source / "cifar-10-python.tar.gz").write_bytes(gzip.compress(as_tar(packed)))


def cifar100(source: Path) -> None:
    folder = source / "cifar-100-python"
    folder.mkdir()
    names = {b"fine_label_names": [b"apple", b"train"]}
    for name, labels in {"train": [0, 1, 1], "test": [0]}.items():
        (folder / name).write_bytes(as_python_2(cifar_batch(labels, b"fine_labels")))
    (folder / "meta").write_bytes(as_python_2(names))


def cifar_records(folder: Path, coarse: bytes, names: str) -> None:
    """The binary version: labels, then red, green and blue, of the images of `cifar_batch`."""
    folder.mkdir()
    files = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for file in files if not coarse else ["train", "test"]:
        labels = [1, 0] if file.startswith("test") else [0, 1]
        pixels = bytes(1024) + b"\x64" * 1024 + b"\xc8" * 1024
        records = [coarse + bytes([label]) + pixels for label in labels]
        (folder / f"{file}.bin").write_bytes(b"".join(records))
    (folder / names).write_text("apple\nbaby\n\n")


def imagenet100(source: Path) -> None:
    for name in [*CLASSES.read_text().splitlines()[2:], "n00000000"]:
        for part in ("train", "val"):
            picture(source / part / name / f"{name}_1.JPEG")


def imagenet(source: Path) -> None:
    from scipy.io import savemat

    names = ("n01440764", "n01443537")
    trains = [
        (f"{name}.tar", as_tar([(f"{name}_{n}.JPEG", b"train")])) for n, name in enumerate(names)
    ]
    (source / "ILSVRC2012_img_train.tar").write_bytes(as_tar(trains))
    vals = [(f"ILSVRC2012_val_{number:08d}.JPEG", b"v" * number) for number in (1, 2, 3)]
    (source / "ILSVRC2012_img_val.tar").write_bytes(as_tar(vals))
    synsets = np.zeros((2, 1), dtype=[("ILSVRC2012_ID", object), ("WNID", object)])
    # Their numbers are not in the order of their ids.
    synsets[:, 0] = [(2, names[0]), (1, names[1])]
    savemat(source / "meta.mat", {"synsets": synsets})
    data = "ILSVRC2012_devkit_t12/data"
    lists = (f"{data}/ILSVRC2012_validation_ground_truth.txt", b"2\n1\n2\n")
    kit = as_tar([(f"{data}/meta.mat", (source / "meta.mat").read_bytes()), lists])
    (source / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(gzip.compress(kit))


LAYOUTS: dict[Callable[[Path], None], dict[str, tuple[list[str], int]]] = {
    cub200: {"train": (["001.Albatross", "100.Pelican"], 4), "test": (["101.White_Pelican"], 2)},
    cars196: {
        "train": (["001.Car_1", "098.Ram_C-V_Minivan_2012"], 2),
        "test": (["099.Car_99", "196.Car_196"], 2),
    },
    sop: {"train": (["00001", "00002"], 3), "test": (["11319"], 1)},
    inshop: {"train": (["id_01"], 2), "test": (["id_02"], 2)},
    cifar10: {"train": (["airplane", "automobile"], 10), "test": (["automobile"], 1)},
    cifar100: {"train": (["apple", "train"], 3), "test": (["apple"], 1)},
    imagenet: {"train": (["n01440764", "n01443537"], 2), "val": (["n01440764", "n01443537"], 3)},
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout.__name__))
def test_prepare_writes_published_split(layout: Callable[[Path], None], tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    layout(source)
    archive = source / "cifar-10-python.tar.gz"
    for _ in range(2):  # idempotent
        parts = prepare(layout.__name__, archive if archive.exists() else source, target)
    for part, (classes, images) in LAYOUTS[layout].items():
        assert sorted(os.listdir(target / part)) == classes
        assert len([f for f in (target / part).rglob("*") if f.is_file()]) == images
    assert [(p.name, p.images, p.classes) for p in parts] == [
        (name, images, len(classes)) for name, (classes, images) in LAYOUTS[layout].items()
    ]
    assert all("the published part has" in str(part.warning) for part in parts)


def test_interrupted_call_leaves_no_part_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    imagenet(tmp_path)
    sizes = {"train": 2, "val": 3}

    def until(calls: Iterator[int], move: Callable[[Path, Path], Path]) -> object:
        def counted(path: Path, to: Path) -> Path:
            if next(calls, None) is None:
                raise Killed
            return move(path, to)

        return counted

    for steps in range(7):  # five files get their names, then two parts
        target, calls = tmp_path / f"target-{steps}", iter(range(steps))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", until(calls, Path.replace))
            patch.setattr(Path, "rename", until(calls, Path.rename))
            with pytest.raises(Killed):
                prepare("imagenet", tmp_path, target)
        for part in target.iterdir():
            assert part.name.startswith(".") or len([*part.rglob("*.JPEG")]) == sizes[part.name]
        prepare("imagenet", tmp_path, target)
        assert sorted(os.listdir(target)) == ["train", "val"]
        assert (target / "val/n01443537/ILSVRC2012_val_00000002.JPEG").read_bytes() == b"vv"
        assert not list(target.rglob(".*"))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "img_train.tar",
            as_tar([("n1.tar", b"")]),
            r"train\.tar has 'n1\.tar'; expected n<digits>",
        ),
        ("img_train.tar", as_tar([("n01440764.tar", b"x" * 600)]), "is damaged, or no tar of tars"),
        (
            "img_val.tar",
            as_tar([("ILSVRC2012_val_00000004.JPEG", b"")]),
            r"4\.JPEG'; expected .* up to 3",
        ),
        ("img_val.tar", b"x" * 600, r"img_val\.tar is damaged, or no tar"),
        (
            "img_val.tar",
            as_tar([("ILSVRC2012_val_00000001.JPEG", b"v" * 600)])[:600],
            r"img_val\.tar' is damaged: unexpected end",
        ),
        ("devkit_t12.tar.gz", b"x", "is not the development kit of ILSVRC2012"),
        # Whole, but with another checksum: SciPy may crash on damaged content.
        ("devkit_t12.tar.gz", gzip.compress(as_tar([]), mtime=0)[:-8] + bytes(8), "BadGzipFile"),
        ("devkit_t12.tar.gz", None, r"devkit_t12\.tar\.gz is missing; expected the authors' files"),
    ],
)
def test_other_tars_than_imagenets_are_refused(
    file: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    imagenet(tmp_path)
    path = tmp_path / f"ILSVRC2012_{file}"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare("imagenet", tmp_path, tmp_path / "target")


def test_imagenet100_is_the_100_classes_of_cmc(tmp_path: Path) -> None:
    imagenet100(tmp_path / "source")
    train, val = prepare("imagenet100", tmp_path / "source", tmp_path / "target")
    assert (train.images, train.classes, val.images, val.classes) == (100, 100, 100, 100)
    assert "n00000000" not in os.listdir(tmp_path / "target" / "train")


def test_prepared_part_is_a_data_set_of_hard_links(tmp_path: Path) -> None:
    cub200(tmp_path / "source")
    prepare("cub200", tmp_path / "source", tmp_path / "target")
    index = ingest_folder(tmp_path / "target" / "train")
    assert index.class_names == ["001.Albatross", "100.Pelican"]
    original = tmp_path / "source/CUB_200_2011/images/001.Albatross/001.Albatross_7.jpg"
    assert (index.root / index.paths[0]).samefile(original)


def test_inshop_has_folders_of_queries_and_gallery_in_each_class(tmp_path: Path) -> None:
    inshop(tmp_path)
    prepare("inshop", tmp_path, tmp_path / "target")
    test = tmp_path / "target/test"
    assert {file.relative_to(test).as_posix() for file in test.rglob("*.jpg")} == {
        "id_02/query/MEN-Denim-id_02-01_2_side.jpg",
        "id_02/gallery/MEN-Denim-id_02-01_3_back.jpg",
    }


def test_prepare_leaves_a_file_of_the_user(tmp_path: Path) -> None:
    cub200(tmp_path / "source")
    prepare("cub200", tmp_path / "source", tmp_path / "out")
    taken = next(path for path in (tmp_path / "out").rglob("*.jpg"))
    taken.unlink()  # a hard link
    taken.write_bytes(b"mine")
    with pytest.raises(ValueError, match=re.escape(f"{taken} exists and is not the image")):
        prepare("cub200", tmp_path / "source", tmp_path / "out")
    assert taken.read_bytes() == b"mine"


def test_prepare_copies_where_links_are_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("dasl_core.data.published.layout.os.link", link)
    sop(tmp_path / "source")
    prepare("sop", tmp_path / "source", tmp_path / "target")
    file = tmp_path / "target/train/00001/1_1.JPG"
    assert file.read_bytes()
    assert file.stat().st_nlink == 1


def test_cifar_pixels_are_in_their_channels(tmp_path: Path) -> None:
    cifar100(tmp_path)
    prepare("cifar100", tmp_path, tmp_path / "target")
    with Image.open(tmp_path / "target/train/apple/00000.png") as image:
        assert image.getcolors() == [(32 * 32, (0, 100, 200))]


@pytest.mark.parametrize(
    ("name", "folder", "coarse", "names", "images"),
    [
        ("cifar10", "cifar-10-batches-bin", b"", "batches.meta.txt", 10),
        ("cifar100", "cifar-100-binary", b"\x05", "fine_label_names.txt", 2),
    ],
)
def test_cifar_in_binary_records(
    name: str, folder: str, coarse: bytes, names: str, images: int, tmp_path: Path
) -> None:
    cifar_records(tmp_path / folder, coarse, names)
    train, test = prepare(name, tmp_path, tmp_path / "target")
    assert (train.images, train.classes, test.images, test.classes) == (images, 2, 2, 2)
    with Image.open(tmp_path / "target/test/baby/00000.png") as image:
        assert image.getcolors() == [(32 * 32, (0, 100, 200))]
    [file, *_] = (tmp_path / folder).glob("test*.bin")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"^test\w* is not a batch of CIFAR: .*cannot reshape"):
        prepare(name, tmp_path, tmp_path / "target")


@pytest.mark.parametrize("content", [os.system, np.zeros(3), np.array([None])])
def test_cifar_pickle_cannot_run_or_build_anything_else(content: object, tmp_path: Path) -> None:
    cifar100(tmp_path)
    (tmp_path / "cifar-100-python/train").write_bytes(as_python_2({b"data": content}))
    with pytest.raises(
        ValueError, match=r"train is damaged, or not a file of CIFAR: it (asks|has) "
    ):
        prepare("cifar100", tmp_path, tmp_path / "target")


def test_half_an_archive_of_cifar_is_refused(tmp_path: Path) -> None:
    cifar10(tmp_path)
    archive = tmp_path / "cifar-10-python.tar.gz"
    content = archive.read_bytes()
    for damaged in (content[: len(content) // 2], content[:40] + bytes(40) + content[80:]):
        archive.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is not the archive with cifar-10-batches-py/"):
            prepare("cifar10", archive, tmp_path / "target")


def test_prepare_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"images\.txt is missing; looked in .*CUB_200_2011"):
        prepare("cub200", tmp_path, tmp_path / "target")
    cub200(tmp_path)
    (tmp_path / "CUB_200_2011/images/100.Pelican/100.Pelican_9.jpg").unlink()
    with pytest.raises(ValueError, match=r"100\.Pelican_9\.jpg is missing; the lists"):
        prepare("cub200", tmp_path, tmp_path / "target")
    (tmp_path / "CUB_200_2011/classes.txt").write_text("1 001.Albatross extra\n")
    with pytest.raises(ValueError, match=r"classes\.txt, line 1: expected 2 columns"):
        prepare("cub200", tmp_path, tmp_path / "target")


def lose_a_class(source: Path) -> None:
    cub200(source)
    (source / "CUB_200_2011" / "classes.txt").write_text("1 001.Albatross\n")


def damage_matlab_file(source: Path) -> None:
    cars196(source)
    (source / "cars_annos.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))


def name_another_part(source: Path) -> None:
    inshop(source)
    [file] = source.rglob("list_eval_partition.txt")
    file.write_text(file.read_text().replace("gallery", "museum"))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("cub200", lose_a_class, "images.txt: image 3 has no class in image_class_labels.txt"),
        ("cars196", damage_matlab_file, "cars_annos.mat is not the list of Cars-196"),
        ("inshop", name_another_part, "unknown part 'museum'; expected one of"),
    ],
)
def test_damaged_list_is_refused_with_its_name(
    name: str, damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        prepare(name, tmp_path, tmp_path / "target")


def test_names_in_lists_cannot_leave_the_target(tmp_path: Path) -> None:
    cub200(tmp_path)
    (tmp_path / "CUB_200_2011/classes.txt").write_text("1 ..\n100 b\n101 c\n")
    with pytest.raises(ValueError, match=r"'\.\.' cannot be the name"):
        prepare("cub200", tmp_path, tmp_path / "target")
