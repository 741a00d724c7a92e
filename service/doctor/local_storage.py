"""Checks of the local storage of a service: home, disk, database and artifacts.

It does not create what is missing, because a machine may be only a client.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from service.doctor import MISSING, Finding
from service.mounts import network_file_system

# Of `service.artifacts.free_space`, which a client-only install cannot import.
FULL_BYTES = 32 << 20
_WARN_FREE_BYTES, _FAIL_FREE_BYTES = 10e9, 1e9


def run_checks() -> Iterator[Finding]:
    """Check home, disk, database and artifacts, as the environment's settings name them."""
    try:
        from service.doctor.stores import check_artifacts, check_database
        from service.settings import read_settings
    except ModuleNotFoundError as error:
        if error.name not in ("pydantic_settings", "sqlalchemy"):  # a server with a package missing
            raise
        yield Finding("home", "skip", "no service runs here: the server extra is not installed")
        return
    try:
        settings = read_settings()
    except ValueError as error:
        yield Finding(
            "settings", "fail", str(error), "Correct the variable; see docs/operations.md"
        )
        return
    yield _home(settings.home)
    yield _disk("disk", settings.home)
    if (artifacts := _elsewhere(settings.artifacts_uri, settings.home)) is not None:
        yield _disk("artifacts' disk", artifacts)
    yield check_database(settings.database_url)
    yield check_artifacts(settings.artifacts_uri)


def _home(home: Path) -> Finding:
    folder = _nearest_existing(home)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        remedy = "Allow this user to write there, or set DASL_HOME to another folder"
        return Finding("home", "fail", f"{home} is not writable", remedy)
    if (network := network_file_system(folder)) is not None:
        return Finding("home", "fail", f"{home} {network}", "Set DASL_HOME")
    return Finding("home", "ok", str(home) if folder == home else f"{home} {MISSING}")


def _disk(name: str, folder: Path) -> Finding:
    free = shutil.disk_usage(_nearest_existing(folder)).free
    message = f"{free / 1e9:.1f} GB free for {folder}"
    remedy = "Free disk space: on a full disk, checkpoints are lost and SQLite stops"
    if free >= _WARN_FREE_BYTES:
        return Finding(name, "ok", message)
    if free < FULL_BYTES:
        message = f"the disk is full: {message}"
    return Finding(name, "fail" if free < _FAIL_FREE_BYTES else "warn", message, remedy)


def _elsewhere(uri: str, home: Path) -> Path | None:
    """Return the folder of the artifacts if it is local and on another disk than the home."""
    if not uri.startswith("file://"):
        return None
    folder = Path(uri.removeprefix("file://"))
    devices = {_nearest_existing(path).stat().st_dev for path in (folder, home)}
    return folder if len(devices) > 1 else None


def _nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return path if path.exists() or path == path.parent else _nearest_existing(path.parent)
