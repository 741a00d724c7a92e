"""Versions of the installed packages."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed, as DASL in a source tree.

    Cached, because the metadata take longer to read than everything else of the API's start.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None
