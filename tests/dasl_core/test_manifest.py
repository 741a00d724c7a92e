"""Manifests of checkpoints: which names are valid, and which files are opened."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from dasl_core.manifest import MANIFEST, find_damage, read_digests

DIGESTS = {"weights": sha256(b"w").hexdigest()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "weights").write_bytes(b"w")
    (folder / MANIFEST).write_text(json.dumps({"sha256": DIGESTS}))
    return folder


def test_intact_files_are_not_damaged(checkpoint: Path) -> None:
    assert read_digests(checkpoint) == DIGESTS
    assert find_damage(checkpoint) is None
    # On the same machine a checkpoint's files may be links to another place.
    (checkpoint / "weights").rename(checkpoint.parent / "elsewhere")
    (checkpoint / "weights").symlink_to(checkpoint.parent / "elsewhere")
    assert find_damage(checkpoint) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../secret", "/etc/passwd", "folder/file", "a\0b", "\ud800", ".hidden"]
)
def test_unsafe_name_is_not_read(checkpoint: Path, name: str) -> None:
    (checkpoint / MANIFEST).write_text(json.dumps({"sha256": DIGESTS | {name: ""}}))
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        read_digests(checkpoint)
    assert find_damage(checkpoint) == f"{checkpoint / MANIFEST} is damaged"


@pytest.mark.parametrize(
    "content",
    ["[]", '{"sha256": ["weights"]}', "{", "[" * 100_000],
    ids=["no settings", "no digests", "cut off", "deep"],
)
def test_manifest_without_files_is_damaged(checkpoint: Path, content: str) -> None:
    (checkpoint / MANIFEST).write_text(content)
    assert find_damage(checkpoint) == f"{checkpoint / MANIFEST} is damaged"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["weights", MANIFEST])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_special_files_are_not_read(checkpoint: Path, name: str, kind: str) -> None:
    (checkpoint / name).unlink()
    if kind == "pipe":
        os.mkfifo(checkpoint / name)  # opening it would block without a writer
    else:
        (checkpoint / name).symlink_to("/dev/null")  # stands for /dev/zero
    with pytest.raises(OSError, match=f"Not a regular file: .*{name}"):
        find_damage(checkpoint)
