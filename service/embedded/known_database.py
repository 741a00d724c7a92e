"""Remember the database of a home folder: an empty one in its place would look as if all data were lost."""

from sqlalchemy import URL, make_url

from service.client.config import write_private
from service.db.migrate import is_empty
from service.settings import Settings

_FILE = "database"


def check_database(settings: Settings) -> None:
    """Check that the database is not empty where the home was used with one.

    Raises:
        ValueError: it is, for example because `DASL_DATABASE_URL` is not set, or because its file is lost.
    """
    file, named = settings.home / _FILE, _name(settings)
    if not file.exists() or not is_empty(settings.database_url):
        return
    known = file.read_text(encoding="utf-8").strip()
    if known != named:
        raise ValueError(
            f"DASL_DATABASE_URL: {named} is empty, and {settings.home} was used with {known} until now. Set "
            f"DASL_DATABASE_URL to that one, or, to begin with an empty database, remove {file}"
        )
    raise ValueError(
        f"DASL_DATABASE_URL: {named} is empty, and {settings.home} was used with it: its tables are lost. Restore a "
        f"backup with dasl db restore, or, to begin with an empty database, remove {file}"
    )


def remember_database(settings: Settings) -> None:
    """Record the database that the home is used with."""
    write_private(settings.home / _FILE, f"{_name(settings)}\n")


def _name(settings: Settings) -> str:
    """Return the URL without user and password, which change."""
    url = make_url(settings.database_url)
    without = URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
    return without.render_as_string()
