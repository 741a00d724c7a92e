"""Bootstrap tokens, created in the database directly: without a token the API cannot be used.

`dasl serve` makes one once and keeps it where the command line finds it; in a deployment
`dasl db admin-token` makes them.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

from sqlalchemy.orm import Session

from service.api import repository
from service.client.config import DEFAULT_URL
from service.credentials import hash_token
from service.db.session import Database
from service.tokens import service

_TENANT = "default"


def place(database: Database, url: str, shared: Path, own: Path) -> Path:
    """Choose the file for the address and token of `dasl serve`: `shared`, unless another server's.

    It is our own when it names this address, or another one (of an earlier start, on another port)
    with a token that is good here. What is no configuration belongs to nobody.

    Args:
        shared: the file that `dasl` reads by itself.
        own: one that only this server writes.
    """
    known = _read(shared)
    if known is None or known.get("url", DEFAULT_URL).rstrip("/") == url:
        return shared
    with database.read() as session:
        return shared if _is_good(session, known.get("token")) else own


def admin_token(database: Database, config: Path) -> str:
    """The token in a client's configuration if it is valid here, else a new one."""
    kept = (_read(config) or {}).get("token")
    with database.write() as session:
        return kept if kept and _is_good(session, kept) else _new(session, _TENANT, "dasl serve")


def new_admin_token(database: Database, name: str, tenant: str) -> str:
    """Create an admin token of a tenant, for an operator with access to the database."""
    with database.write() as session:
        return _new(session, tenant, name)


def write_config(config: Path, url: str, token: str) -> None:
    """Write the client's configuration, readable by its owner only."""
    # JSON strings are valid TOML strings.
    text = f"# Written by `dasl serve`.\nurl = {json.dumps(url)}\ntoken = {json.dumps(token)}\n"
    config.parent.mkdir(parents=True, exist_ok=True)
    unfinished = config.with_name(f".{config.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    unfinished.replace(config)


def _new(session: Session, tenant: str, name: str) -> str:
    _, token = service.create(session, tenant=tenant, name=name, scopes=["admin"])
    return token


def _is_good(session: Session, token: str | None) -> bool:
    row = repository.token_by_hash(session, hash_token(token)) if token else None
    return row is not None and row.revoked_at is None and "admin" in row.scopes


def _read(config: Path) -> dict[str, str] | None:
    """The string values of a configuration; `None` if there is none, or it is invalid."""
    try:
        content = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    return {key: value for key, value in content.items() if isinstance(value, str)}
