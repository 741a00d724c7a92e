"""The source runs on Python 3.11.0: mypy checks the minor version, these tests the patch."""

import ast
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.fonts import unpack_fonts

ROOT = Path(__file__).parents[1]
# Keyword arguments that the standard library gained in a patch release of 3.11.
NEW_KEYWORDS = {
    ("extract", "filter"): "3.11.4",
    ("extractall", "filter"): "3.11.4",
    ("unpack_archive", "filter"): "3.11.4",
    ("getaddresses", "strict"): "3.11.10",
    ("parseaddr", "strict"): "3.11.10",
}
# Names that the standard library gained in a patch release of 3.11.
NEW_NAMES = {
    "tarfile.data_filter": "3.11.4",
    "tarfile.tar_filter": "3.11.4",
    "tarfile.fully_trusted_filter": "3.11.4",
    "tarfile.FilterError": "3.11.4",
    "os.path.ALLOW_MISSING": "3.11.13",
}
# Few files have one of them, and reading all takes seconds.
NEW_WORDS = re.compile("|".join([*(name for name, _ in NEW_KEYWORDS), *NEW_NAMES]))


def newer_than_oldest(source: str) -> Iterator[str]:
    """Yield one line of text for each use of a feature that Python 3.11.0 lacks."""
    if not NEW_WORDS.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            for keyword in node.keywords:
                if (called, keyword.arg) in NEW_KEYWORDS:
                    yield f"line {node.lineno}: {called}({keyword.arg}=)"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in NEW_NAMES:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_source_uses_nothing_newer_than_oldest_python() -> None:
    files = [
        file for package in ROOT.glob("*/__init__.py") for file in package.parent.rglob("*.py")
    ]
    assert len(files) > 100
    problems = {
        str(file.relative_to(ROOT)): newer
        for file in files
        if (newer := list(newer_than_oldest(file.read_text(encoding="utf-8"))))
    }
    assert problems == {}


@pytest.mark.parametrize(
    "source",
    ["archive.extractall(folder, filter='data')", "import tarfile\ntarfile.data_filter(a, b)"],
)
def test_newer_than_oldest_finds_new_names(source: str) -> None:
    assert len(list(newer_than_oldest(source))) == 1


def test_images_unpack_without_extraction_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tarfile.TarFile.extractall

    def extractall(
        self: tarfile.TarFile, path: str = ".", members: Any = None, *, numeric_owner: bool = False
    ) -> None:
        """Extract with the signature of Python 3.11.0."""

        new(self, path, members, numeric_owner=numeric_owner)

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    images = unpack_fonts(tmp_path)
    assert images == tmp_path / "fonts"
    assert len(os.listdir(images)) == 170
    assert all(file.stat().st_size for file in images.glob("*/*"))
