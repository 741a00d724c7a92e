"""Checks of the installed packages and of the GPUs that training would use.

Neither torch nor Ray is imported: versions come from package metadata, and GPUs from a subprocess.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING

from dasl_core.installed import installed_version
from service.doctor import Finding

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_TRAINING = ("torch", "torchvision", "timm", "ray")
_INSTALL = 'pip install ".[training]" in a checkout of DASL if jobs run on this machine; a client does not need it'
_GPUS = """
import json, torch
names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
print(json.dumps({"cuda": torch.version.cuda, "names": names}))
"""
# Importing torch takes many seconds from a cold disk.
_GPU_CHECK_SECONDS = 120


def run_checks() -> Iterator[Finding]:
    """Check Python, DASL, the packages for training, and GPUs."""
    yield _python()
    yield Finding("dasl", "ok", installed_version("dasl") or "runs from a source tree")
    requirements = _requirements()
    for name in _TRAINING:
        yield _package(name, requirements.get(name))
    yield _gpus()


def _python() -> Finding:
    message = f"{platform.python_version()} at {sys.executable}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Finding("python", "ok", message)
    return Finding(
        "python", "fail", message, "Install DASL in an environment with Python 3.11 to 3.13"
    )


def _package(name: str, required: SpecifierSet | None) -> Finding:
    installed = installed_version(name)
    if installed is None:
        return Finding(name, "warn", "not installed", _INSTALL)
    if required is not None and not required.contains(installed, prereleases=True):
        message = f"{installed} is installed, but DASL needs {required}"
        return Finding(name, "fail", message, f'pip install "{name}{required}"')
    return Finding(name, "ok", installed)


def _requirements() -> dict[str, SpecifierSet]:
    """Return the version ranges of DASL's requirements, from its metadata."""
    try:
        from packaging.requirements import Requirement

        parsed = [Requirement(line) for line in requires("dasl") or ()]
    except (ModuleNotFoundError, PackageNotFoundError):
        # Installations for training include `packaging`; only a source tree has no metadata.
        return {}
    return {requirement.name: requirement.specifier for requirement in parsed}


def _gpus() -> Finding:
    if installed_version("torch") is None:
        return Finding("GPUs", "skip", "torch is not installed")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _GPUS],
            capture_output=True,
            text=True,
            timeout=_GPU_CHECK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "GPUs", "warn", f"torch did not start within {_GPU_CHECK_SECONDS} s", "Try again"
        )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        remedy = "Reinstall torch; it cannot be imported"
        return Finding("GPUs", "fail", f"torch fails: {reason[0][:200]}", remedy)
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["names"]:
        return Finding("GPUs", "ok", ", ".join(answer["names"]) + f" (CUDA {answer['cuda']})")
    if shutil.which("nvidia-smi") is None:
        return Finding("GPUs", "ok", "none; training uses CPUs")
    built = f"for CUDA {answer['cuda']}" if answer["cuda"] else "without CUDA"
    remedy = (
        "Compare `nvidia-smi`, CUDA_VISIBLE_DEVICES and the CUDA version that torch was built for"
    )
    return Finding(
        "GPUs", "warn", f"a driver is installed, but torch (built {built}) sees no GPU", remedy
    )
