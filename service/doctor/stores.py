"""Checks of the database and the artifact store of a service, which need the server extra."""

import errno
from pathlib import Path

from sqlalchemy import inspect, make_url
from sqlalchemy.exc import SQLAlchemyError

from service.artifacts.storage import Storage
from service.db import migrate
from service.db.session import Database, first_line
from service.doctor import MISSING, Finding

_CONNECT_SECONDS = "5"


def check_database(configured_url: str) -> Finding:
    """Check that the database answers and has the tables of this version."""
    try:
        url = make_url(configured_url)
        masked = url.render_as_string(hide_password=True)
        if url.drivername.startswith("sqlite"):
            if url.database and not Path(url.database).exists():
                return Finding("database", "ok", f"{masked} {MISSING}")
        else:
            url = url.update_query_dict({"connect_timeout": _CONNECT_SECONDS})
        database = Database(url.render_as_string(hide_password=False))
        try:
            with database.read() as session:
                if not inspect(session.connection()).has_table("alembic_version"):
                    message = f"{masked} has no tables yet; `dasl serve` creates them"
                    return Finding("database", "ok", message)
                behind = migrate.behind(session.connection())
        finally:
            database.dispose()
    except (SQLAlchemyError, ValueError) as error:
        remedy = (
            "Start the database or correct DASL_DATABASE_URL; `dasl db upgrade` creates the tables"
        )
        return Finding("database", "fail", first_line(error), remedy)
    if behind:
        return Finding("database", "fail", f"{masked} {behind}", "dasl db upgrade")
    return Finding("database", "ok", f"{masked} has the tables of this version")


def check_artifacts(root: str) -> Finding:
    """Check that the artifact store can be written to."""
    try:
        if root.startswith("file://") and not Path(root.removeprefix("file://")).exists():
            return Finding("artifacts", "ok", f"{root} {MISSING}")
        Storage(root).check_writable()
    except ValueError as error:
        remedy = "Correct DASL_ARTIFACTS_URI, or the permissions there"
        if getattr(error.__cause__, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Make room there"
        return Finding("artifacts", "fail", str(error), remedy)
    return Finding("artifacts", "ok", f"{root} is writable")
