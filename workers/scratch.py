"""Temporary files of a submission on a node, shared by its ranks and removed even after a kill."""

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from dasl_core.data.cache import cache_root
from dasl_core.locks import IN_USE, HeldFolder, locked, unheld
from service.wire.checkpoints import FileEntry
from workers.artifacts import download

logger = logging.getLogger(__name__)

DIRECTORY_VARIABLE = "DASL_SCRATCH_DIR"
# Nothing else below the root is ever removed.
PREFIX = "dasl-"
_WAIT_SECONDS = 0.2


def scratch_root() -> Path:
    """Return the folder for temporary files, from the environment."""
    folder = os.environ.get(DIRECTORY_VARIABLE)
    return Path(folder) if folder else cache_root() / "scratch"


class SubmissionFolder:
    """Context manager for the folder of a submission, shared by its processes on this machine.

    The last process removes it. Folders left by killed processes of other submissions are removed at the start.
    """

    def __init__(self, root: Path, submission: str) -> None:
        self.path = root / f"{PREFIX}{submission}"

    def __enter__(self) -> Self:
        try:
            self._held = HeldFolder(self.path)
        except OSError as error:
            raise OSError(
                f"{self.path} cannot be used for temporary files: {error}. "
                f"Set {DIRECTORY_VARIABLE} to a folder on a local disk"
            ) from error
        for folder in self.path.parent.glob(f"{PREFIX}*"):
            if folder != self.path and _is_submission(folder) and _remove_unused(folder):
                logger.info("removed %s, which a killed process left", folder)
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.close()
        _remove_unused(self.path)

    def download(
        self,
        uri: str,
        files: Sequence[FileEntry],
        on_chunk: Callable[[], object] | None = None,
    ) -> Path:
        """Copy the files of a checkpoint, once for all processes; return their folder.

        Args:
            on_chunk: called after each part, copied by any of the processes.

        Raises:
            OSError: as `workers.artifacts.download`.
        """
        folder, partial = self.path / "resume", self.path / "resume.partial"
        report = on_chunk or (lambda: None)
        seen = 0

        def wait() -> None:
            nonlocal seen
            size = _size(partial)
            if size != seen:
                seen = size
                report()
            time.sleep(_WAIT_SECONDS)

        with locked(self.path / "resume.lock", wait):
            if not folder.exists():
                shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
                partial.mkdir()
                download(uri, files, partial, report)
                partial.rename(folder)
        return folder


def _is_submission(folder: Path) -> bool:
    """Whether a folder belongs to a submission; folders of other users may not be readable."""
    try:
        os.stat(folder / IN_USE)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        logger.warning("%s is skipped, as it cannot be read: %s", folder, error)
        return False
    return True


def _remove_unused(folder: Path) -> bool:
    """Remove the folder of a submission unless a process uses it; return whether it is removed."""
    try:
        with unheld(folder / IN_USE) as free:
            if not free:
                return False
            for entry in folder.iterdir():
                if entry.name == IN_USE:
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            (folder / IN_USE).unlink()
            folder.rmdir()
    except OSError as error:  # must not fail a training; the next start retries
        logger.warning("%s cannot be removed: %s", folder, error)
        return False
    return True


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder, which may be renamed at any time."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:
        return 0
