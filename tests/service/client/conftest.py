"""No test of the client may find the settings of the person who runs it."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration folder, which is returned, and no DASL_* variables of address."""
    folder = tmp_path / "xdg"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("DASL_URL", raising=False)
    monkeypatch.delenv("DASL_TOKEN", raising=False)
    return folder
