"""What is installed here, and which GPUs training would see.

Neither torch nor Ray is imported: their versions are in their metadata, and another process looks for GPUs.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from service.doctor.finding import Finding

_TRAINING = ("torch", "torchvision", "timm", "ray")
_INSTALL = 'pip install "dasl[training]", where jobs are to run; a client needs none of it'
_GPUS = """
import json, torch
names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
print(json.dumps({"cuda": torch.version.cuda, "names": names}))
"""
# The import alone takes many seconds from a cold disk.
_GPU_SECONDS = 120


def look() -> Iterator[Finding]:
    """Python, DASL, the packages that train, and GPUs."""
    yield _python()
    yield Finding("dasl", "ok", version_of("dasl") or "run from a source tree")
    needed = _requirements()
    for name in _TRAINING:
        yield _package(name, needed.get(name, ""))
    yield _gpus()


def version_of(package: str) -> str | None:
    """The version that is installed, if it is."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _python() -> Finding:
    said = f"{platform.python_version()} at {sys.executable}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Finding("python", "ok", said)
    return Finding("python", "fail", said, "Install DASL in an environment of Python 3.11 to 3.13")


def _package(name: str, needed: str) -> Finding:
    has = version_of(name)
    if has is None:
        return Finding(name, "warn", "is not installed", _INSTALL)
    if needed and not _fits(has, needed):
        return Finding(
            name, "fail", f"{has}, and DASL needs {needed}", f'pip install "{name}{needed}"'
        )
    return Finding(name, "ok", has)


def _requirements() -> dict[str, str]:
    """Version ranges of the packages that train, as DASL's own metadata has them."""
    try:
        from packaging.requirements import Requirement

        parsed = [Requirement(line) for line in requires("dasl") or ()]
    except (ModuleNotFoundError, PackageNotFoundError):
        return {}  # Whatever trains needs the one; only a source tree has not the other.
    return {requirement.name: str(requirement.specifier) for requirement in parsed}


def _fits(has: str, needed: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(needed).contains(has, prereleases=True)


def _gpus() -> Finding:
    if version_of("torch") is None:
        return Finding("GPUs", "skip", "torch, which would use them, is not installed")
    try:
        told = subprocess.run(
            [sys.executable, "-c", _GPUS], capture_output=True, text=True, timeout=_GPU_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Finding("GPUs", "warn", f"torch did not start within {_GPU_SECONDS} s", "Try again")
    if told.returncode != 0:
        reason = told.stderr.strip().splitlines()[-1:] or ["no reason given"]
        todo = "Install torch anew; it cannot be imported"
        return Finding("GPUs", "fail", f"torch fails: {reason[0][:200]}", todo)
    seen = json.loads(told.stdout.splitlines()[-1])
    if seen["names"]:
        return Finding("GPUs", "ok", ", ".join(seen["names"]) + f" (CUDA {seen['cuda']})")
    if shutil.which("nvidia-smi") is None:
        return Finding("GPUs", "ok", "none: training here uses CPUs")
    built = f"for CUDA {seen['cuda']}" if seen["cuda"] else "without CUDA"
    todo = (
        "Compare `nvidia-smi`, CUDA_VISIBLE_DEVICES and the CUDA version that torch was built for"
    )
    return Finding("GPUs", "warn", f"there is a driver, but torch (built {built}) sees none", todo)
