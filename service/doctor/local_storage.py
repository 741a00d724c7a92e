"""Where a service on this machine keeps its things: home, database and artifacts.

Nothing is made here that is not there: a machine that is only a client keeps nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from service.doctor.finding import Finding

if TYPE_CHECKING:
    pass

_LITTLE, _TOO_LITTLE = 10e9, 1e9
_CONNECT_SECONDS = "5"
_NOT_YET = "is not there yet: `dasl serve` makes it"


def look() -> Iterator[Finding]:
    """Home, disk, database and artifacts of the settings in the environment."""
    try:
        from service.settings import read_settings
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"dasl_core", "service"}:
            raise
        said = "the server extra is not installed, so no service runs here"
        yield Finding("home", "skip", said)
        return
    try:
        settings = read_settings()
    except ValueError as error:
        yield Finding(
            "settings", "fail", str(error), "Correct the variable, see docs/operations.md"
        )
        return
    yield _home(settings.home)
    yield _disk(settings.home)
    yield _database(settings.database_url)
    yield _artifacts(settings.artifacts_uri)


def _home(home: Path) -> Finding:
    place = _existing(home)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        todo = "Give this user the right to write there, or name another place in DASL_HOME"
        return Finding("home", "fail", f"{home} cannot be written", todo)
    return Finding("home", "ok", str(home) if place == home else f"{home} {_NOT_YET}")


def _disk(home: Path) -> Finding:
    free = shutil.disk_usage(_existing(home)).free
    said = f"{free / 1e9:.1f} GB free for {home}"
    todo = "Make room: a save that finds no room is lost, and SQLite stops"
    if free < _TOO_LITTLE:
        return Finding("disk", "fail", said, todo)
    return Finding("disk", "warn", said, todo) if free < _LITTLE else Finding("disk", "ok", said)


def _database(given: str) -> Finding:
    from sqlalchemy import make_url
    from sqlalchemy.exc import SQLAlchemyError

    from service.db import migrate
    from service.db.session import Database, in_a_line

    try:
        url = make_url(given)
        shown = url.render_as_string(hide_password=True)
        if url.drivername.startswith("sqlite"):
            if url.database and not Path(url.database).exists():
                return Finding("database", "ok", f"{shown} {_NOT_YET}")
        else:
            url = url.update_query_dict({"connect_timeout": _CONNECT_SECONDS})
        database = Database(url.render_as_string(hide_password=False))
        try:
            with database.read() as session:
                behind = migrate.behind(session.connection())
        finally:
            database.dispose()
    except (SQLAlchemyError, ValueError) as error:
        todo = "Start it, or correct DASL_DATABASE_URL; `dasl db upgrade` makes the tables"
        return Finding("database", "fail", in_a_line(error), todo)
    if behind:
        return Finding("database", "fail", f"{shown} {behind}", "dasl db upgrade")
    return Finding("database", "ok", f"{shown} has the tables of this version")


def _artifacts(root: str) -> Finding:
    from service.artifacts.storage import Storage

    try:
        if root.startswith("file://") and not Path(root.removeprefix("file://")).exists():
            return Finding("artifacts", "ok", f"{root} {_NOT_YET}")
        Storage(root).try_to_write()
    except ValueError as error:
        return Finding("artifacts", "fail", str(error), "Correct it, or the rights there")
    return Finding("artifacts", "ok", f"{root} can be written")


def _existing(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    return path if path.exists() or path == path.parent else _existing(path.parent)
