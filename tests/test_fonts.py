"""The images of `service/demo/fonts.tar.gz`, their parts and their licenses."""

import io
import re
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from examples.fonts import ARCHIVE, PARTS, part_of, unpack_fonts
from service.demo.service import demo_spec


@pytest.fixture(scope="module")
def images() -> dict[tuple[str, str, str], bytes]:
    """Files of the archive, by part, family and name."""
    files = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            part, family, name = member.name.split("/")
            content = archive.extractfile(member)
            assert content is not None
            files[part, family, name] = content.read()
    return files


@pytest.fixture(scope="module")
def families(images: dict[tuple[str, str, str], bytes]) -> dict[str, str]:
    """The part of each family."""
    return {family: part for part, family, _ in images}


def test_parts_share_no_design(
    images: dict[tuple[str, str, str], bytes], families: dict[str, str]
) -> None:
    assert {(family, part) for part, family, _ in images} == set(families.items())
    assert {family: part_of(family) for family in families} == families
    designs = {(family.split("-")[0], part) for family, part in families.items()}
    assert len(designs) == len({design for design, _ in designs})
    assert [list(families.values()).count(part) for part in PARTS] == [170, 61]


def test_images_are_small_and_gray_and_equally_many_of_each_family(
    images: dict[tuple[str, str, str], bytes], families: dict[str, str]
) -> None:
    for content in images.values():
        with Image.open(io.BytesIO(content)) as image:
            assert (image.format, image.mode, image.size) == ("PNG", "L", (48, 48))
            assert min(image.tobytes()) < 192, "the word shows"
    counts = [sum(family == each for _, family, _ in images) for each in families]
    assert set(counts) == {24}
    assert len(set(images.values())) == len(images) == 231 * 24


def test_a_part_unpacks_as_folders_of_classes(
    images: dict[tuple[str, str, str], bytes], tmp_path: Path
) -> None:
    folder = unpack_fonts(tmp_path, "fonts-choose")
    assert list(tmp_path.iterdir()) == [folder]
    unpacked = {file.relative_to(tmp_path).parts: file.read_bytes() for file in folder.glob("*/*")}
    assert unpacked == {names: c for names, c in images.items() if names[0] == "fonts-choose"}
    with pytest.raises(ValueError, match="part: 'test' is none of fonts, fonts-choose"):
        unpack_fonts(tmp_path, "test")


def test_demo_holds_out_whole_designs_of_the_archive_and_of_the_folder(
    families: dict[str, str],
) -> None:
    pattern = demo_spec()["evaluate"]["holdout"]["group"]["pattern"]
    for family in families:
        for path in (f"fonts/{family}/word.png", f"{family}/word.png"):
            assert re.findall(pattern, path) == [family.partition("-")[0]]


def test_licenses_name_each_family_and_its_copyright(families: dict[str, str]) -> None:
    text = ARCHIVE.resolve().with_name("fonts-licenses.txt").read_text(encoding="utf-8")
    listed, _, terms = text.partition("\nApache-2.0 is the license in the file LICENSE")
    _, *entries = listed.split("\n\n")[1:]
    licensed = {}
    for entry in entries:
        family, holder = entry.strip().split("\n    ")
        licensed[family.partition(":")[0]] = family.rpartition(", ")[2]
        assert holder
    assert set(licensed) == set(families)
    assert set(licensed.values()) == {"OFL-1.1", "Apache-2.0"}
    assert "SIL OPEN FONT LICENSE Version 1.1" in terms
    assert "PERMISSION & CONDITIONS" in terms
