"""Words in many fonts: the images of `fonts.tar.gz`. A class is a font family."""

import hashlib
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("fonts.tar.gz")
# Train and report on the first, with a holdout; choose a recipe on the second.
PARTS = ("fonts", "fonts-choose")


def part_of(family: str) -> str:
    """Return the part of a class: about a quarter of them are in the second.

    Families of one design, such as `fira-sans` and `fira-mono`, share their first word and are in the same part.
    """
    design = family.partition("-")[0]
    quarter = hashlib.sha256(f"part {design}".encode()).digest()[0] // 64
    return PARTS[quarter == 2]


def unpack_fonts(folder: Path, part: str = PARTS[0]) -> Path:
    """Unpack a part into `folder / part`, a folder for each class, and return that path; a ValueError if unknown."""
    if part not in PARTS:
        raise ValueError(f"part: {part!r} is none of {', '.join(PARTS)}")
    with tarfile.open(ARCHIVE) as archive:
        # Python 3.11.0 to 3.11.3 (Debian 12) have no `filter=`. The archive is trusted.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder, [m for m in archive if m.name.startswith(f"{part}/")])
    return folder / part
