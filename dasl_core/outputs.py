"""Output of commands: files that a command did not write are replaced only with `--force`."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PREVIEW_MARK = ".dasl-preview"


class OutputExists(ValueError):
    """A command would replace files that it did not write."""


def check_replaceable(files: Mapping[Path, str | None], *, force: bool) -> None:
    """Check that no file would be lost, before any is written.

    Args:
        files: sha256 of the new content by path; None if it is not known yet, so that any existing file is refused.

    Raises:
        OutputExists: a file exists with another content, and `force` is False.
    """
    if force:
        return
    for path, sha256 in files.items():
        if os.path.lexists(path) and (sha256 is None or sha256_of(path) != sha256):
            raise OutputExists(
                f"--output: {path} exists. Choose another, or replace it with --force (force=True in Python)."
            )


def check_folder(folder: Path, mark: str, *, force: bool) -> None:
    """Check that a folder has no files except hidden ones, or is one that a command filled before.

    Args:
        mark: name of the file with which that command marks its folders.

    Raises:
        OutputExists: it has other files, and `force` is False.
    """
    if force or not folder.exists() or (folder / mark).exists():
        return
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if names:
        raise OutputExists(
            f"--output: {folder} has files that this command did not write, such as {names[0]}. Choose another folder, "
            "or write to this one with --force."
        )


@contextmanager
def own_folder(folder: Path, mark: str, *, force: bool) -> Iterator[bool]:
    """Yield whether files may be replaced: with `force`, or in a folder that an earlier call created and marked."""
    is_new = not folder.exists()
    try:
        yield force or (folder / mark).exists()
    finally:  # an interrupted call can be repeated
        if is_new and folder.exists():
            (folder / mark).touch()


def sha256_of(path: Path) -> str | None:
    """Return the digest of a file; None for anything else."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
