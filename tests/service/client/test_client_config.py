"""Where address and token come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.client import Client, ConfigError
from service.client.config import config_path, resolve_connection


def _write(text: str) -> Path:
    path = config_path()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_without_anything_it_is_this_machine() -> None:
    found = resolve_connection()
    assert (found.url, found.token) == ("http://127.0.0.1:8000", None)


def test_the_file_then_the_environment_then_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    _write('url = "http://file:1/"\ntoken = "from-file"\n')
    found = resolve_connection()
    assert (found.url, found.token) == ("http://file:1", "from-file")

    monkeypatch.setenv("DASL_URL", "http://env:2")
    monkeypatch.setenv("DASL_TOKEN", "from-env")
    found = resolve_connection()
    assert (found.url, found.token) == ("http://env:2", "from-env")

    found = resolve_connection("http://argument:3", "mine")
    assert (found.url, found.token) == ("http://argument:3", "mine")


def test_the_files_token_is_shown_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    _write('url = "http://file:1"\ntoken = "secret"\n')
    monkeypatch.setenv("DASL_URL", "http://elsewhere:2")
    assert resolve_connection().token is None
    monkeypatch.setenv("DASL_URL", "http://file:1/")
    assert resolve_connection().token == "secret"


def test_a_token_does_not_show_in_a_repr() -> None:
    assert "secret" not in repr(resolve_connection("http://a:1", "secret"))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", "/v1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a server address"):
        Client(url)


def test_a_token_with_a_line_break_within() -> None:
    with pytest.raises(ConfigError, match="token"):
        Client("http://a:1", "one\ntwo")


def test_a_broken_file_is_named() -> None:
    path = _write("url = ")
    with pytest.raises(ConfigError, match=str(path)):
        Client()


def test_the_version_prefix_in_an_address_is_no_mistake() -> None:
    assert Client("http://a:1/v1/").url == "http://a:1"
