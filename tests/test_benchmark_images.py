"""Images and their places in the benchmarks of data."""

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.data.sources import Files, Tar
from benchmarks.images import write_different_jpegs, write_jpegs


def test_jpegs_are_deterministic_and_of_the_size_of_photographs(tmp_path: Path) -> None:
    first, again = (write_jpegs(tmp_path / name, 2, 500, 375) for name in ("first", "again"))
    for image, copy in zip(first, again, strict=True):
        assert image.read_bytes() == copy.read_bytes()
        assert 30_000 < image.stat().st_size < 60_000
    assert first[0].read_bytes() != first[1].read_bytes()


def test_images_beyond_the_distinct_ones_repeat_them(tmp_path: Path) -> None:
    paths = write_jpegs(tmp_path, 5, 32, 24, distinct=2)
    contents = [path.read_bytes() for path in paths]
    assert contents == [contents[0], contents[1], contents[0], contents[1], contents[0]]


def test_tar_reads_the_bytes_of_each_image(tmp_path: Path) -> None:
    paths = write_jpegs(tmp_path / "images", 3, 32, 24)
    files, tar = Files(paths), Tar.write(tmp_path / "images.tar", paths)
    assert [tar.read(number) for number in range(3)] == [files.read(number) for number in range(3)]


def test_different_jpegs_have_the_pixels_of_the_distinct_ones(tmp_path: Path) -> None:
    paths = write_different_jpegs(tmp_path, 6, 32, 24, distinct=2)
    assert len({path.read_bytes() for path in paths}) == 6
    assert len({path.stat().st_size for path in paths}) == 6
    pixels = [np.asarray(Image.open(path)) for path in paths]
    assert all((pixels[number] == pixels[number % 2]).all() for number in range(6))
    assert (pixels[0] != pixels[1]).any()
