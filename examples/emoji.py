"""Drawings of emoji: the images of `emoji.tar.gz`. A class is an emoji."""

import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("emoji.tar.gz")


def unpack_emoji(folder: Path, classes: int | None = None) -> Path:
    """Unpack the images of the first classes by name, or all, to folders in `folder / "emoji"`; return that path."""
    with tarfile.open(ARCHIVE) as archive:
        # Python 3.11.0 to 3.11.3 (Debian 12) have no `filter=`. The archive is trusted.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        members = [member for member in archive if member.isfile()]
        names = sorted({Path(member.name).parent for member in members})
        unpacked = set(names[:classes])
        archive.extractall(folder, [m for m in members if Path(m.name).parent in unpacked])
    return folder / "emoji"
