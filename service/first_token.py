"""The first tokens, made in the database itself since there is none yet to ask the API with.

`dasl serve` makes one once and keeps it where the command line finds it; in a deployment
`dasl db admin-token` makes them.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

from sqlalchemy.orm import Session

from service.auth import hash_token
from service.db.session import Database
from service.tokens import repository, service

_TENANT = "default"


def admin_token(database: Database, config: Path) -> str:
    """The token in the client's configuration if it is good here, else a new one."""
    kept = _kept(config)
    with database.write() as session:
        if kept is not None:
            row = repository.find_by_hash(session, hash_token(kept))
            if row is not None and row.revoked_at is None and "admin" in row.scopes:
                return kept
        return _new(session, "dasl serve")


def new_admin_token(database: Database, name: str) -> str:
    """A new admin token, of whoever may write to the database itself."""
    with database.write() as session:
        return _new(session, name)


def write_config(config: Path, url: str, token: str) -> None:
    """Write the client's configuration, for the eyes of its owner alone."""
    # JSON strings are TOML strings as well.
    text = f"# Written by `dasl serve`.\nurl = {json.dumps(url)}\ntoken = {json.dumps(token)}\n"
    config.parent.mkdir(parents=True, exist_ok=True)
    unfinished = config.with_name(f".{config.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    unfinished.replace(config)


def _new(session: Session, name: str) -> str:
    _, token = service.create(session, tenant=_TENANT, name=name, scopes=["admin"])
    return token


def _kept(config: Path) -> str | None:
    try:
        token = tomllib.loads(config.read_text(encoding="utf-8")).get("token")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None  # There is none, or it is no configuration and will be replaced by one.
    return token if isinstance(token, str) else None
