"""Where address and token come from."""

from pathlib import Path

import pytest

from service.client import Client, ConfigError
from service.client.config import config_path, resolve_connection


def _write(text: str) -> Path:
    path = config_path()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_default_address_is_this_machine() -> None:
    connection = resolve_connection()
    assert (connection.url, connection.token) == ("http://127.0.0.1:8000", None)


def test_arguments_override_environment_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    _write('url = "http://file:1/"\ntoken = "from-file"\n')
    connection = resolve_connection()
    assert (connection.url, connection.token) == ("http://file:1", "from-file")

    monkeypatch.setenv("DASL_URL", "http://env:2")
    monkeypatch.setenv("DASL_TOKEN", "from-env")
    connection = resolve_connection()
    assert (connection.url, connection.token) == ("http://env:2", "from-env")

    connection = resolve_connection("http://argument:3", "mine")
    assert (connection.url, connection.token) == ("http://argument:3", "mine")


def test_stored_token_is_not_sent_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    _write('url = "http://file:1"\ntoken = "secret"\n')
    monkeypatch.setenv("DASL_URL", "http://elsewhere:2")
    assert resolve_connection().token is None
    monkeypatch.setenv("DASL_URL", "http://file:1/")
    assert resolve_connection().token == "secret"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_names_of_this_machine_are_one_server(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    _write('url = "http://127.0.0.1:8000"\ntoken = "secret"\n')
    monkeypatch.setenv("DASL_URL", f"http://{host}:8000/")
    assert resolve_connection().token == "secret"
    for other in (f"http://{host}:8001", f"https://{host}:8000", "http://elsewhere:8000"):
        monkeypatch.setenv("DASL_URL", other)
        assert resolve_connection().token is None


def test_repr_hides_the_token() -> None:
    assert "secret" not in repr(resolve_connection("http://a:1", "secret"))


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://a",
        "http://",
        "/v1",
        "http://[::1",
        "http://a:port",
        "http://a:99999",
        "http://a\x00",
        pytest.param("http://a/" + 70_000 * "b", id="long"),
    ],
)
def test_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a server address"):
        Client(url)


def test_token_with_a_line_break_is_refused() -> None:
    with pytest.raises(ConfigError, match="token"):
        Client("http://a:1", "one\ntwo")


def test_unreadable_config_file_is_named() -> None:
    path = _write("url = ")
    with pytest.raises(ConfigError, match=str(path)):
        Client()


def test_address_may_end_with_v1() -> None:
    assert Client("http://a:1/v1/").url == "http://a:1"
