"""A slow disk, without one: reads and writes of files that take as long as on it."""

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("slow_disk.c")
_RATE = "SLOW_DISK_BYTES_PER_SECOND"


def slowed(folder: Path, megabytes_per_second: float) -> dict[str, str]:
    """Return variables with which a process sees a slow disk.

    Args:
        folder: for the library that it loads.
        megabytes_per_second: of all reads and writes together; 1 MB is 10^6 bytes.

    Raises:
        ValueError: there is no C compiler, or it fails.
    """
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        raise ValueError("--disk-limit: needs a C compiler. Install one, or set CC.")
    library = folder / "slow_disk.so"
    made = subprocess.run(
        [
            compiler,
            "-O1",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(_SOURCE),
            "-ldl",
            "-lpthread",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise ValueError(f"--disk-limit: {compiler} failed: {made.stderr.strip()}")
    return {"LD_PRELOAD": str(library), _RATE: str(int(megabytes_per_second * 1e6))}
