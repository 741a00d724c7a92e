"""Default name of a data set: the name of its folder."""

from pathlib import Path

import pytest

from service.cli.inputs import folder_name


def test_folder_name_resolves_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "birds" / "raw"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert folder_name("..") == "birds"
    assert folder_name(".") == "raw"
    assert folder_name("../raw/") == "raw"
