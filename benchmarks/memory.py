"""Peak memory of a computation in a fresh process, where freed memory that is kept cannot hide growth."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def in_fresh_process(
    module: str, name: str, arguments: argparse.Namespace, *, return_memory: bool = True
) -> dict[str, Any]:
    """Run `module --alone name` with the same options and return what it prints, which is JSON.

    Args:
        return_memory: allocate tensors directly from the operating system and return them to it.
    """
    command = [sys.executable, "-m", module, "--alone", name]
    for option in ("threads", "device", "batch"):
        if (value := getattr(arguments, option, None)) is not None:
            command += [f"--{option}", str(value)]
    variables = {"MALLOC_MMAP_THRESHOLD_": "65536"} if return_memory else {}
    ended = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def peak_bytes(device: torch.device, *, reset: bool = False) -> int:
    """Return peak memory so far; with `reset`, restart the peak at the memory in use now."""
    if device.type == "cuda":
        synchronize(device)
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    if reset:
        # Linux: set the peak to the memory that is resident now.
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def anonymous_bytes() -> int:
    """Return the resident memory of this process without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
