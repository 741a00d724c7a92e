"""Progress of a cache build, for the processes that wait for it."""

from contextlib import suppress
from pathlib import Path


class BuildProgress:
    """A number of images in a small file, which one process writes while others read."""

    def __init__(self, file: Path) -> None:
        self._file, self._seen = file, 0

    def write(self, images: int) -> None:
        """Record the number of images read."""
        # Not flushed to disk: only running processes read it.
        self._file.write_text(f"{images:020}", encoding="ascii")

    def read(self) -> int:
        """Return the last recorded number, or 0."""
        with suppress(FileNotFoundError, ValueError):  # not started, or being written
            self._seen = int(self._file.read_text(encoding="ascii"))
        return self._seen

    def remove(self) -> None:
        """Remove the file after the build."""
        self._file.unlink(missing_ok=True)
