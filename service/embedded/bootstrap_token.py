"""Bootstrap tokens, created directly in the database, as the API cannot be used without a token.

`dasl serve` creates one and stores it in the configuration file of the command line; in a deployment
`dasl db admin-token` creates them.
"""

import tomllib
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.orm import Session

from service.api import repository
from service.client.config import DEFAULT_URL, same_server
from service.credentials import Scope, hash_token, includes
from service.db.session import Database
from service.tokens import repository as tokens
from service.tokens import service

_TENANT, _NAME = "default", "dasl serve"


def choose_config(database: Database, url: str, shared: Path, private: Path) -> Path:
    """Choose the file for the address and token of `dasl serve`: `shared`, unless it belongs to another server.

    It belongs to this server if it has this address, or a token of this server (from an earlier start on another
    port). A missing or invalid file may be overwritten.

    Args:
        shared: the file that `dasl` reads by default.
        private: a file that only this server writes.
    """
    config = _read(shared)
    if config is None or same_server(config.get("url", DEFAULT_URL), url):
        return shared
    with database.read() as session:
        return shared if _is_valid(session, config.get("token")) else private


def admin_token(database: Database, config: Path) -> str:
    """Return the token in a client's configuration if this server accepts it, otherwise a new one."""
    token = (_read(config) or {}).get("token")
    with database.write() as session:
        # A user of the machine has access to the database and is therefore an operator anyway.
        if token and _is_valid(session, token):
            return token
        # One that was created shortly before the process was killed is in no file.
        tokens.remove_unused(session, _TENANT, _NAME)
        return _new(session, _TENANT, _NAME, "operator")


def new_admin_token(database: Database, name: str, tenant: str, *, scope: Scope = "admin") -> str:
    """Create a token of a tenant, for an operator with access to the database."""
    with database.write() as session:
        return _new(session, tenant, name, scope)


def _new(session: Session, tenant: str, name: str, scope: Scope) -> str:
    _, token = service.create(session, tenant=tenant, name=name, scopes=[scope])
    return token


def _is_valid(session: Session, token: str | None) -> bool:
    credential = repository.credential_by_hash(session, hash_token(token)) if token else None
    if credential is None or credential.refusal(datetime.now(UTC)) is not None:
        return False
    return includes(credential.scope, "admin")


def _read(config: Path) -> dict[str, str] | None:
    """Return the string values of a configuration file; `None` if it is missing or invalid."""
    try:
        content = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    return {key: value for key, value in content.items() if isinstance(value, str)}
