"""A data set of 1,000 damaged files and a few good ones: it is usable, and every file that is not has a reason."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dasl_core.damaged_files import BOMBS, CLAIMS, FILES, variants

DAMAGED = 1000
# Of a process that has imported torch and decodes two images at a time; it takes 0.9 GB.
MAX_MEMORY = 1_500_000_000
INTERNALS = re.compile(r"operand|NoneType|literal|broadcast|\bb'|object (of|has)")


def odd_entries(folder: Path) -> int:
    """Create what is named like an image and is none; return how many there are."""
    for extension in ("jpg", "png", "tif", "dcm", "npy", "heic", "dng"):
        (folder / f"empty.{extension}").touch()
        (folder / f"text.{extension}").write_text("not an image, but a text\n" * 20)
    os.mkfifo(folder / "pipe.jpg")
    (folder / "dangling.jpg").symlink_to(folder / "nowhere.jpg")
    (folder / "outside.jpg").symlink_to("/etc/hostname")
    (folder / "folder.jpg").mkdir()
    (folder / "folder.jpg" / "inside.png").write_bytes(FILES["a.png"][:60])
    (folder / "link.png").symlink_to(folder / "folder.jpg")
    Path(os.fsdecode(bytes(folder) + b"/\xff.png")).write_bytes(FILES["a.png"])
    return sum(len(files) for _, _, files in os.walk(folder)) + 1  # and the link to a folder


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `ingest_and_draw` found."""
    parent = tmp_path_factory.mktemp("damaged")
    folder = parent / "images"
    folder.mkdir()
    odd = odd_entries(folder)
    large = {f"bomb-{name}": content for name, content in (BOMBS | CLAIMS).items()}
    files = dict(variants(DAMAGED - odd - len(large), seed=0)) | large
    files |= {f"good-{name}": content for name, content in FILES.items()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.dasl_core.ingest_and_draw", folder, parent / "cache"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-4000:])
    found: dict[str, Any] = json.loads(ended.stdout)
    found["files"] = DAMAGED + len(FILES)
    return found


def test_every_damaged_file_is_usable_or_has_a_reason(outcome: dict[str, Any]) -> None:
    skipped = dict(outcome["skipped"])
    assert len(skipped) + len(outcome["usable"]) == outcome["files"]
    assert not skipped.keys() & set(outcome["usable"])
    for path, reason in skipped.items():
        assert reason.isprintable(), path
        assert 10 < len(reason) < 300, (path, reason)
        assert not INTERNALS.search(reason), (path, reason)
    # Many damages leave something to decode.
    assert DAMAGED / 3 < len(skipped) < DAMAGED


def test_good_files_among_damaged_ones_are_usable(outcome: dict[str, Any]) -> None:
    refused = {path: why for path, why in outcome["skipped"] if path.startswith("good-")}
    # Those with other bands, or another kind or range of values, than most.
    expected = ("the image has 5 bands", "they have no common scale", "no window shows both")
    assert all(any(part in why for part in expected) for why in refused.values()), refused
    assert len(refused) < len(FILES) / 2


def test_bombs_and_files_without_an_image_are_refused(outcome: dict[str, Any]) -> None:
    usable = {path for path in outcome["usable"] if path.startswith(("bomb-", "empty.", "text."))}
    # libjpeg fills with gray what these lack of an image of an allowed size.
    assert usable == {"bomb-allowed.jpg", "bomb-progressive.jpg"}


def test_canvases_of_what_is_left_are_drawn_in_bounded_memory(outcome: dict[str, Any]) -> None:
    assert outcome["drawn"] == len(outcome["usable"])
    assert outcome["unreadable"] == {}  # all were decoded at ingest
    assert outcome["finite"]
    assert outcome["peak_bytes"] < MAX_MEMORY
