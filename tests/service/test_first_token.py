"""The token that `dasl serve` makes at its first start and finds again at the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.auth import hash_token
from service.client.config import Connection, resolve_connection
from service.db.session import Database
from service.first_token import admin_token, place, write_config
from service.tokens import repository, service

URL = "http://127.0.0.1:8000"


def test_a_restart_uses_the_same_token(database: Database, tmp_path: Path) -> None:
    config = tmp_path / "dasl" / "config.toml"
    token = admin_token(database, config)
    write_config(config, URL, token)
    assert config.stat().st_mode & 0o777 == 0o600
    assert admin_token(database, config) == token
    with database.read() as session:
        row = repository.find_by_hash(session, hash_token(token))
    assert row is not None
    assert row.scopes == ["admin"]


def test_the_client_finds_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DASL_URL", raising=False)
    monkeypatch.delenv("DASL_TOKEN", raising=False)
    config = tmp_path / "dasl" / "config.toml"
    token = admin_token(database, config)
    write_config(config, URL, token)
    assert resolve_connection() == Connection(URL, token)


def test_a_revoked_or_foreign_or_broken_one_is_replaced(database: Database, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    revoked = admin_token(database, config)
    with database.write() as session:
        row = repository.find_by_hash(session, hash_token(revoked))
        assert row is not None
        service.revoke(session, row.tenant, row.id)
    for content in (f'token = "{revoked}"', 'token = "of another server"', "= nonsense", "token=1"):
        config.write_text(content)
        token = admin_token(database, config)
        assert token not in content


def test_another_servers_configuration_stays(database: Database, tmp_path: Path) -> None:
    shared, own = tmp_path / "config.toml", tmp_path / "home" / "client.toml"
    write_config(shared, "https://dasl.example.org", "its token")
    before = shared.read_bytes()
    assert place(database, URL, shared, own) == own
    token = admin_token(database, own)
    write_config(own, URL, token)
    # The next start finds the same token again.
    assert place(database, URL, shared, own) == own
    assert admin_token(database, own) == token
    assert shared.read_bytes() == before


def test_its_own_configuration_is_kept_up_to_date(database: Database, tmp_path: Path) -> None:
    shared, own = tmp_path / "config.toml", tmp_path / "client.toml"
    assert place(database, URL, shared, own) == shared
    write_config(shared, "http://127.0.0.1:45678", admin_token(database, shared))
    # The same server, started on another port.
    assert place(database, URL, shared, own) == shared
    # A new database behind the same address.
    write_config(shared, f"{URL}/", "a token of the old one")
    assert place(database, URL, shared, own) == shared
    shared.write_text("= nonsense")
    assert place(database, URL, shared, own) == shared
