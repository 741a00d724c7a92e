"""How far the builder of a cache is, for the processes that wait for it."""

from contextlib import suppress
from pathlib import Path


class BuildProgress:
    """A number of images in a small file, which one process writes while others read."""

    def __init__(self, file: Path) -> None:
        self._file, self._seen = file, 0

    def write(self, images: int) -> None:
        """Note the number of images that are read."""
        # Not flushed to the disk: it is for processes that wait at this moment.
        self._file.write_text(f"{images:020}", encoding="ascii")

    def read(self) -> int:
        """Return the number that was written last; 0 if none was yet."""
        with suppress(FileNotFoundError, ValueError):  # not begun, or just being written
            self._seen = int(self._file.read_text(encoding="ascii"))
        return self._seen

    def remove(self) -> None:
        """Remove the file, when there is nothing left to wait for."""
        self._file.unlink(missing_ok=True)
