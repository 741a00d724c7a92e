"""A server and a client of it. No test may find the settings of the person who runs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.client import Client
from tests.support.api_server import Service, running_service


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration folder, which is returned, and no DASL_* variables of address."""
    folder = tmp_path / "xdg"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("DASL_URL", raising=False)
    monkeypatch.delenv("DASL_TOKEN", raising=False)
    return folder


@pytest.fixture(autouse=True)
def log_settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is followed ends sooner after its job: no dispatcher copies more of it."""
    monkeypatch.setattr("service.jobs.streams._LOG_SETTLES_SECONDS", 0.3)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def client(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """An SDK client; the environment leads the command line to the same server."""
    monkeypatch.setenv("DASL_URL", service.url)
    monkeypatch.setenv("DASL_TOKEN", service.token)
    with Client() as client:
        yield client
