"""What kind of file system a folder is on."""

import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
# Of file systems whose files other machines write, too.
_NETWORK = re.compile(
    r"nfs4?|cifs|smb\w*|afs|ceph|lustre|gpfs|beegfs|glusterfs|fuse\.(sshfs|glusterfs|ceph\w*|s3fs|rclone)"
)


def network_file_system(folder: Path) -> str | None:
    """Return why SQLite must not be in a folder, and the remedy; None if the folder is on this machine.

    See "Dangers of network filesystems" in SQLite's documentation of WAL.
    """
    kind = _file_system(folder)
    if kind is None or not _NETWORK.fullmatch(kind):
        return None
    return (
        f"is on a network file system ({kind}), where locks may not hold and SQLite loses data. Set it to a folder on a "
        "disk of this machine; images and DASL_ARTIFACTS_URI may be there"
    )


def _file_system(folder: Path) -> str | None:
    """Return the kind of the file system of a folder, such as "ext4"; None where the system does not say."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found: list[tuple[int, str]] = []
    for line in lines:
        about, _, source = line.partition(" - ")
        octal = r"\\([0-7]{3})"  # blanks, tabs, line breaks and backslashes
        place = re.sub(octal, lambda code: chr(int(code[1], 8)), about.split(" ")[4])
        if folder.resolve().is_relative_to(place):
            found.append((len(place), source.split(" ")[0]))
    # Of two mounts at one place, the later one is seen.
    return max(enumerate(found), key=lambda each: (each[1][0], each[0]))[1][1] if found else None
