"""`dasl cache` shows and removes decoded images."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dasl_core.data.cache import CacheFolder
from service.cli.app import app


def cache(*options: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["cache", "--json", *options])
    assert done.exit_code == 0, done.output
    shown: dict[str, Any] = json.loads(done.output)
    return shown


def test_folders_that_no_process_uses_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("DASL_CACHE_DIR", str(root))
    assert cache("--clear") == {"path": str(root), "folders": 0, "bytes": 0, "freed_bytes": 0}
    for name in ("ds_1-1", "local/abc", "used"):
        (root / name).mkdir(parents=True)
        (root / name / "canvases-1").write_bytes(b"12345")
    (root / "notes.txt").write_text("mine")
    assert cache() == {"path": str(root), "folders": 3, "bytes": 15, "freed_bytes": 0}
    held = CacheFolder(root / "used")
    try:
        held.use("canvases-1")
        assert cache("--clear") == {"path": str(root), "folders": 1, "bytes": 5, "freed_bytes": 10}
    finally:
        held.close()
    assert cache("--clear")["freed_bytes"] == 5
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["notes.txt"]
    assert "0 B in 0 folders" in CliRunner().invoke(app, ["cache"]).output
