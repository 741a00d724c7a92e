"""`dasl login` against the real API and real OpenID Connect providers on loopback."""

import json
import subprocess
import sys
import threading
import tomllib
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import oidc_provider_mock
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from service.cli.loopback import Callback
from service.client import Client
from service.client.config import write_config
from service.login.provider import Provider
from service.wire.access import StartedLogin
from tests.support.answers import answer_of
from tests.support.api_server import Service, running_service
from tests.support.command_line import run
from tests.support.oidc_provider import CLIENT_ID, oidc_provider

BROWSER = httpx.Client(verify=False, trust_env=False, follow_redirects=True, timeout=30)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("home")) as running:
        running.settings.oidc_tenant = "t"
        yield running


@pytest.fixture
def config(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of the command line, which does not exist at first."""
    monkeypatch.setenv("DASL_URL", service.url)
    monkeypatch.delenv("DASL_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "dasl" / "config.toml"


def use_provider(api: FastAPI, service: Service, issuer: str) -> None:
    service.settings.oidc_issuer, service.settings.oidc_client_id = issuer, CLIENT_ID
    api.state.login_provider = Provider(service.settings)


def browse_with(monkeypatch: pytest.MonkeyPatch, visit: Any) -> list[threading.Thread]:
    """Visit the page that `dasl login` opens, in a thread as a browser does."""
    threads: list[threading.Thread] = []

    def open_page(url: str) -> bool:
        thread = threading.Thread(target=visit, args=(url,))
        thread.start()
        threads.append(thread)
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    return threads


def test_login_at_an_independent_provider(
    service: Service, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the package oidc-provider-mock, which Authlib implements."""
    pages: list[str] = []

    def visit(url: str) -> None:
        pages.append(BROWSER.post(url, data={"sub": "ada@example.org"}).text)

    with oidc_provider_mock.run_server_in_thread() as server:
        # Authlib accepts confidential clients only, and this one any secret.
        monkeypatch.setattr(service.settings, "oidc_client_secret", SecretStr("any"))
        use_provider(service.app, service, f"http://127.0.0.1:{server.server_port}")
        threads = browse_with(monkeypatch, visit)
        text = run("login").stdout
        for thread in threads:
            thread.join()
    assert text.startswith("Logged in to tenant t, scopes submit until ")
    assert "Return to the terminal" in pages[0]
    assert config.stat().st_mode & 0o777 == 0o600
    stored = tomllib.loads(config.read_text())
    assert stored["url"] == service.url
    assert stored["token"] not in text
    with Client() as client:  # with the stored token
        current = client.tokens.current()
    with Client(token=service.token) as admin:
        user = admin.users.get(current.user_id or "")
    assert user.subject == "ada@example.org"


def test_denied_login_is_reported(
    service: Service, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with oidc_provider() as provider:
        provider.denial = "You are not in the lab."
        use_provider(service.app, service, provider.url)
        browse_with(monkeypatch, BROWSER.get)
        problem = run("login", code=1).stderr
    assert "The login provider refused the login: You are not in the lab." in problem
    assert not config.exists()


def test_login_with_a_browser_on_another_machine(service: Service, config: Path) -> None:
    with oidc_provider() as provider:
        use_provider(service.app, service, provider.url)
        wrong = "http://127.0.0.1:1/callback?code=x&state=y\n"
        problem = run("login", "--paste", code=1, stdin=wrong).stderr
        assert "not the address of this login" in problem
        assert not config.exists()
        command = [sys.executable, "-m", "service.cli", "login", "--paste"]
        with subprocess.Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, bufsize=1
        ) as process:
            assert process.stderr is not None
            page = next(line for line in process.stderr if provider.url in line).strip()
            sent_to = BROWSER.get(page, follow_redirects=False).headers["location"]
            stdout, _ = process.communicate(f"{sent_to}\n")
    assert process.returncode == 0
    assert stdout.startswith("Logged in to tenant t")
    assert config.exists()


def test_token_of_another_server_is_not_replaced_silently(
    service: Service, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(config, "https://dasl.example.org", "its token", author="dasl login")
    before = config.read_bytes()
    problem = run("login", code=1).stderr
    assert "dasl login --overwrite" in problem
    assert config.read_bytes() == before
    with oidc_provider() as provider:
        use_provider(service.app, service, provider.url)
        browse_with(monkeypatch, BROWSER.get)
        printed = json.loads(run("login", "--overwrite", "--json").stdout)
    assert printed["token"] is None
    assert printed["expires_at"] is not None
    assert tomllib.loads(config.read_text())["url"] == service.url


def test_login_without_a_provider_names_the_setting(service: Service, config: Path) -> None:
    service.app.state.login_provider = None
    assert "DASL_OIDC_ISSUER" in run("login", code=1).stderr


def test_callback_accepts_the_code_of_its_own_login_only() -> None:
    login = StartedLogin.model_validate(answer_of(StartedLogin, state="mine"))
    with Callback(0) as callback:
        answers: list[int] = []

        def browse() -> None:
            for path in ("/favicon.ico", "/callback?code=evil&state=theirs", "/callback?code=evil"):
                address = callback.address.replace("/callback", path)
                answers.append(BROWSER.get(address).status_code)
            answers.append(BROWSER.get(f"{callback.address}?code=good&state=mine").status_code)

        thread = threading.Thread(target=browse)
        thread.start()
        assert callback.wait(login) == "good"
        thread.join()
    assert answers == [404, 404, 404, 200]
