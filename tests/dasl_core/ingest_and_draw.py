"""Ingest a folder and draw all of its canvases, in a process of its own: what a damaged file may crash.

    python -m tests.dasl_core.ingest_and_draw FOLDER CACHE

Prints what was found, as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from dasl_core.data.canvases import Canvases
from dasl_core.data.ingest import ingest_folder

IMAGE_SIZE = 16
CHANNELS = 3


def peak_memory() -> int:
    """Peak resident memory in bytes. `ru_maxrss` would include that of the process that started this one."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Ingest, draw, and print."""
    folder, cache = map(Path, sys.argv[1:])
    index = ingest_folder(folder, workers=2)
    canvases = Canvases(index, IMAGE_SIZE, CHANNELS, cache=cache, threads=2)
    try:
        pixels, _ = canvases.read(np.arange(len(index)))
    finally:
        canvases.close()
    print(
        json.dumps(
            {
                "usable": list(index.paths),
                "skipped": [list(each) for each in index.skipped],
                "unused": index.unused,
                "unreadable": {index.paths[at]: why for at, why in canvases.unreadable.items()},
                "drawn": len(pixels),
                "finite": bool(torch.isfinite(pixels.float()).all()),
                "peak_bytes": peak_memory(),
            }
        )
    )


if __name__ == "__main__":
    main()
