"""Startup errors of `dasl serve` and the dispatcher: one line that names the variable."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import log_records
from service.dispatcher import __main__ as dispatcher
from service.embedded import serve
from service.embedded.local_ray import LocalRay
from service.server import __main__ as api


@pytest.fixture(autouse=True)
def restore_process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log_records, "configure", lambda *_arguments, **_options: None)
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in signals.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_ray: LocalRay) -> None:
        raise AssertionError("settings must be checked before Ray starts, which takes long")

    monkeypatch.setattr(LocalRay, "start", never)
    monkeypatch.setenv("DASL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DASL_PORT", "0")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("DASL_LEASE_SECONDS", "abc", "DASL_LEASE_SECONDS: Input should be a valid number"),
        (
            "DASL_HOME",
            "{tmp}/file",
            "{tmp}/file (DASL_HOME) is a file, not a folder. Name a folder",
        ),
        (
            "DASL_HOME",
            "{tmp}/link",
            "{tmp}/link (DASL_HOME) is a link to unmounted, which does not",
        ),
        ("DASL_HOME", "{tmp}/file/home", "(DASL_HOME) cannot be used: Not a directory"),
        (
            "DASL_DATABASE_URL",
            "sqlite:///{tmp}/text",
            "(DASL_DATABASE_URL) is damaged: file is not a database. Restore a backup with",
        ),
        ("DASL_DATABASE_URL", "mysql://u:hunter2@h/d", "DASL_DATABASE_URL names 'mysql'"),
        (
            "DASL_DATABASE_URL",
            "postgresql+psycopg://u:hunter2@127.0.0.1:1/d",
            "(DASL_DATABASE_URL) cannot be brought up to date",
        ),
        ("DASL_ARTIFACTS_URI", "file://{tmp}/file/a", "(DASL_ARTIFACTS_URI) cannot be written"),
        ("DASL_ARTIFACTS_URI", "nowhere://bucket", "(DASL_ARTIFACTS_URI) cannot be written"),
    ],
)
def test_serve_reports_bad_setting_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    message: str,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("unmounted")
    (tmp_path / "text").write_text("no database at all" * 100)
    monkeypatch.setenv(variable, value.format(tmp=tmp_path))
    assert serve.main() == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line for line in lines if line.startswith("dasl serve: ")] == lines[-1:]
    assert message.format(tmp=tmp_path) in lines[-1]
    assert "Traceback" not in "".join(lines)
    assert "hunter2" not in "".join(lines)


def test_dispatcher_reports_bad_setting_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dispatcher"])
    monkeypatch.setenv("DASL_LEASE_SECONDS", "abc")
    assert dispatcher.main() == 1
    assert "The dispatcher cannot start: DASL_LEASE_SECONDS: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("DASL_PORT", "70000", "DASL_PORT: "), ("DASL_HOST", "192.0.2.1", "192.0.2.1")],
)
def test_api_reports_bad_setting_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    message: str,
) -> None:
    monkeypatch.setattr(api, "stay_on_one_core", lambda: None)
    monkeypatch.setenv(name, value)
    assert api.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("The API cannot start: ")
    assert message in line
