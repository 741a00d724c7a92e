"""The admin token that `dasl serve` creates at its first start and reuses afterwards."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.api import repository
from service.cli.app import app
from service.client.config import Connection, resolve_connection, write_config
from service.credentials import hash_token
from service.db.session import Database
from service.embedded.bootstrap_token import admin_token, choose_config
from tests.support.api_under_test import Api, refused

URL = "http://127.0.0.1:8000"


def test_bootstrap_token_is_reused_after_restart(database: Database, tmp_path: Path) -> None:
    config = tmp_path / "dasl" / "config.toml"
    token = admin_token(database, config)
    write_config(config, URL, token, author="dasl serve")
    assert config.stat().st_mode & 0o777 == 0o600
    assert admin_token(database, config) == token
    with database.read() as session:
        credential = repository.credential_by_hash(session, hash_token(token))
    assert credential is not None
    assert credential.token.scopes == ["operator"]
    assert credential.scope == "operator"


def test_killed_starts_leave_one_token(database: Database, tmp_path: Path) -> None:
    """Each kill between a token's row and its file left an operator's token that never expires."""
    first, second = (admin_token(database, tmp_path / "config.toml") for _ in range(2))
    with database.read() as session:
        assert repository.credential_by_hash(session, hash_token(first)) is None
        assert repository.credential_by_hash(session, hash_token(second)) is not None


def test_bootstrap_token_is_read_by_the_client(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DASL_URL", raising=False)
    monkeypatch.delenv("DASL_TOKEN", raising=False)
    config = tmp_path / "dasl" / "config.toml"
    token = admin_token(database, config)
    write_config(config, URL, token, author="dasl serve")
    assert resolve_connection() == Connection(URL, token)


def test_unusable_bootstrap_token_is_replaced(database: Database, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    revoked = admin_token(database, config)
    with database.write() as session:
        credential = repository.credential_by_hash(session, hash_token(revoked))
        assert credential is not None
        credential.token.revoked_at = datetime.now(UTC)
    for content in (f'token = "{revoked}"', 'token = "of another server"', "= nonsense", "token=1"):
        config.write_text(content)
        token = admin_token(database, config)
        assert token not in content


def test_config_of_another_server_is_kept(database: Database, tmp_path: Path) -> None:
    shared, private = tmp_path / "config.toml", tmp_path / "home" / "client.toml"
    write_config(shared, "https://dasl.example.org", "its token", author="dasl serve")
    before = shared.read_bytes()
    assert choose_config(database, URL, shared, private) == private
    token = admin_token(database, private)
    write_config(private, URL, token, author="dasl serve")
    # The next start reads the same token.
    assert choose_config(database, URL, shared, private) == private
    assert admin_token(database, private) == token
    assert shared.read_bytes() == before


def test_config_of_same_server_is_updated_in_place(database: Database, tmp_path: Path) -> None:
    shared, private = tmp_path / "config.toml", tmp_path / "client.toml"
    assert choose_config(database, URL, shared, private) == shared
    write_config(
        shared, "http://127.0.0.1:45678", admin_token(database, shared), author="dasl serve"
    )
    # The same server, started on another port.
    assert choose_config(database, URL, shared, private) == shared
    # A new database at the same address.
    write_config(shared, f"{URL}/", "a token of the old one", author="dasl serve")
    assert choose_config(database, URL, shared, private) == shared
    shared.write_text("= nonsense")
    assert choose_config(database, URL, shared, private) == shared


def test_admin_token_command_creates_another_tenant(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_DATABASE_URL", api.settings.database_url)
    dataset = api.dataset()
    arguments = ["db", "admin-token", "theirs", "--tenant", "lab", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["tenant"] == "lab"
    headers = {"Authorization": f"Bearer {printed['token']}"}
    assert api.client.get("/v1/datasets", headers=headers).json()["data"] == []
    refused(api.client.get(f"/v1/datasets/{dataset}", headers=headers), 404)
    # Tokens that it creates belong to the same tenant.
    answer = api.client.post("/v1/tokens", json={"name": "a", "scopes": ["read"]}, headers=headers)
    assert answer.status_code == 201
    names = [
        token["name"] for token in api.client.get("/v1/tokens", headers=headers).json()["data"]
    ]
    assert sorted(names) == ["a", "theirs"]
    assert CliRunner().invoke(app, [*arguments[:4], "x" * 101]).exit_code == 2
