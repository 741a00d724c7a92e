"""Whoever makes the service listen beyond loopback is told what that means."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from service.exposure import warn_of_exposure
from service.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_warning(
    host: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_exposure(Settings(home=tmp_path, host=host))
    assert caplog.records == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "gpu-box.example"])
def test_anything_else_is_told_of(
    host: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_exposure(Settings(home=tmp_path, host=host))
        assert "tokens travel unencrypted" in caplog.text
        assert "DASL_DATASET_ROOTS is not set" in caplog.text
        caplog.clear()
        warn_of_exposure(Settings(home=tmp_path, host=host, dataset_roots=(tmp_path,)))
    assert "tokens travel unencrypted" in caplog.text
    assert "DASL_DATASET_ROOTS" not in caplog.text


def test_the_default_is_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASL_HOST", raising=False)
    assert Settings(home=tmp_path).host == "127.0.0.1"
