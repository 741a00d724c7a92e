"""Data sets in a real S3 bucket: read as from a folder, by the workers and by the library alone."""

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from dasl_core.data.ingest import Previous, ingest, ingest_folder
from dasl_core.standalone.images import open_images
from dasl_core.standalone.inputs import DataOptions, read_spec
from service.object_store import open_store
from tests.support.training_world import image_folder, tiny_spec

# What the library reads without the service, whose file system is not registered there.
ALONE = """
import sys
from dasl_core.data.ingest import ingest_folder

assert "service" not in sys.modules
index = ingest_folder(sys.argv[1])
print(len(index), index.class_names, int(index.decode(1, 3).sum(dtype="int64")))
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "images")


def upload(folder: Path, uri: str) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            fs, target = open_store(f"{uri}/{path.relative_to(folder)}")
            fs.pipe_file(target, path.read_bytes())
    return uri


@pytest.mark.slow
def test_images_in_a_bucket_are_those_of_the_folder(s3_root: str, images: Path) -> None:
    (images / "class-0" / "broken.png").write_bytes(b"no image")
    uri = upload(images, s3_root)
    index, local = ingest_folder(uri), ingest_folder(images)
    assert (index.paths, index.class_names) == (local.paths, local.class_names)
    assert index.skipped == local.skipped
    assert (index.sizes == local.sizes).all()
    for position in (0, 13):
        assert np.array_equal(index.decode(position, 3), local.decode(position, 3))
    with pytest.raises(ValueError, match="absent does not exist; expected a folder"):
        ingest_folder(f"{uri}/absent")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, uri], capture_output=True, text=True, timeout=120
    )
    total = int(local.decode(1, 3).sum(dtype="int64"))
    assert done.stdout.strip() == f"{len(local)} {local.class_names} {total}", done.stderr


def test_object_replaced_with_the_same_size_is_found(s3_root: str, images: Path) -> None:
    uri = upload(images, s3_root)
    first = ingest(uri)
    previous = Previous(first.headers, first.index)
    assert ingest(uri, previous=previous).is_unchanged
    name = first.index.paths[0]
    fs, target = open_store(f"{uri}/{name}")
    content = (images / name).read_bytes()
    changed = content[:-30] + bytes(18) + content[-12:]
    fs.pipe_file(target, changed)
    again = ingest(uri, previous=previous)
    assert not again.is_unchanged
    assert again.index.changes_since(first.index)["changed"] == 1


def test_tar_in_a_bucket_is_read_in_parts(s3_root: str, images: Path, tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed" / "images.tar", "w") as archive:
        archive.add(images, ".")
    uri = upload(tmp_path / "packed", s3_root)
    index, local = ingest_folder(f"{uri}/images.tar"), ingest_folder(images)
    assert (index.paths, index.class_names) == (local.paths, local.class_names)
    assert np.array_equal(index.decode(7, 3), local.decode(7, 3))
    # A prefix with nothing but archives is these archives.
    assert ingest_folder(uri).paths == local.paths


def test_training_without_the_service_reads_a_bucket(
    s3_root: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    uri = upload(images, f"{s3_root}/pictures")
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(tiny_spec(dataset=None)))
    job, locations = read_spec(spec, DataOptions(f"{uri}/"), [])
    assert job.dataset == "pictures"
    locations.data.check_outside(tmp_path / "out")
    index, cache = open_images(locations.data)
    assert (index.location, len(index)) == (uri, 27)
    assert cache.is_relative_to(tmp_path / "cache")
    assert np.array_equal(index.decode(7, 3), ingest_folder(images).decode(7, 3))
    with pytest.raises(ValueError, match=r"^--data: .*absent does not exist"):
        read_spec(spec, DataOptions(f"{uri}/absent"), [])[1].data.find()
