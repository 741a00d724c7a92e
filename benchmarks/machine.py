"""The environment of a measurement, and the file of its results."""

import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine(*packages: str) -> dict[str, Any]:
    """Return cores, load, versions and commit, ready for JSON.

    Args:
        packages: distributions whose versions are recorded.
    """
    commit = ""
    if shutil.which("git"):
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        # A busy machine explains a slow result.
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "commit": commit or None,
    }


def _processor() -> str:
    """Return the name of the processor, or its kind where the system does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_results(output: Path, document: dict[str, Any]) -> None:
    """Write results as JSON."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=2) + "\n")
