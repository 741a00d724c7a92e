"""`dasl open`, and the page's address that `dasl serve` prints: with a login code, which only the user can read."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from service.cli.app import app
from service.client import Client
from service.embedded.page import show_page
from tests.support.api_server import Service
from tests.support.command_line import run


def log_in(address: str) -> httpx.Response:
    """Log in as the page does, with the code in its address."""
    url, code = address.split("/#login=")
    with httpx.Client(base_url=url, trust_env=False) as browser:
        return browser.post("/v1/session", json={"code": code})


def test_page_address_logs_in_once_with_the_clients_token(service: Service) -> None:
    with Client(service.url, service.token) as client:
        address, token = client.page_address(), client.tokens.current()
    assert address.startswith(f"{service.url}/#login=")
    answers = [log_in(address) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 401]
    assert answers[0].json()["id"] == token.id


def test_open_without_display_prints_the_address(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_URL", service.url)
    monkeypatch.setenv("DASL_TOKEN", service.token)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    result = run("open")
    assert "No browser was found" in result.stderr
    assert log_in(result.stdout.strip()).status_code == 201
    printed = json.loads(CliRunner().invoke(app, ["open", "--print", "--json"]).stdout)
    assert printed["opened"] is False
    assert log_in(printed["address"]).status_code == 201


def test_open_hands_the_address_to_the_browser_in_a_private_file(
    service: Service, tmp_path: Path
) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.part\nmv {seen}.part {seen}\n')
    browser.chmod(0o755)
    env = os.environ | {
        "DASL_URL": service.url,
        "DASL_TOKEN": service.token,
        "DISPLAY": ":0",
        "BROWSER": str(browser),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    command = [sys.executable, "-m", "service.cli", "open"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    address = result.stdout.strip()
    file = tmp_path / "config" / "dasl" / "open.html"
    assert seen.read_text().strip() == file.as_uri(), "no code on the command line"
    assert file.stat().st_mode & 0o777 == 0o600
    assert re.findall('url=([^"]+)"', file.read_text()) == [address]
    assert log_in(address).status_code == 201


@pytest.mark.parametrize(("terminal", "open_page"), [(True, False), (False, False), (False, True)])
def test_serve_prints_a_code_to_a_terminal_only(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    open_page: bool,
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setattr("service.client.page.open_page", lambda address: opened.append(address))
    show_page(service.database, service.url, service.token, open_page=open_page)
    printed = capsys.readouterr().out
    if terminal:
        assert log_in(printed.removeprefix("Page: ").split(" (")[0]).status_code == 201
    else:
        assert printed.startswith(f"Page: {service.url} (log in with: dasl open)")
        assert "#" not in printed
    assert [log_in(address).status_code for address in opened] == ([201] if open_page else [])
