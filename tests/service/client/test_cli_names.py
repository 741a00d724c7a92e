"""The name that a data set gets from its folder."""

from pathlib import Path

import pytest

from service.cli.names import folder_name


def test_relative_folders_have_their_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "birds" / "raw"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert folder_name("..") == "birds"
    assert folder_name(".") == "raw"
    assert folder_name("../raw/") == "raw"
