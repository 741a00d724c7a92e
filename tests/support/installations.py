"""Published environments for real: each with its own packages and the built wheel, from uv's cache."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tools.environments import ROOT, Environment

# Kept between runs, as `.venv` is; hard links where uv's cache is on the same disk.
FOLDER = ROOT / "build" / "environments"
UV = Path(sys.executable).with_name("uv")


def install(environment: Environment, wheel: Path) -> Path:
    """Install what an environment has and nothing else; return its `bin` folder.

    Environments share a folder if they have the same heaviest package, so that only what differs is exchanged.
    """
    installed = environment.distributions()
    heaviest = [name for name in ("torch", "fastapi") if name in installed]
    folder = FOLDER / (heaviest[0] if heaviest else "client")
    lock = ROOT / "requirements" / (environment.lock or "dev.lock")
    pins = re.findall(r"^\S+?==.*?(?=^\S|\Z)", lock.read_text("utf-8"), flags=re.M | re.S)
    pins = [pin for pin in pins if environment.lock or pin.partition("==")[0] in installed]
    requirements = folder.with_suffix(".txt")
    FOLDER.mkdir(parents=True, exist_ok=True)
    requirements.write_text("".join(pins), encoding="utf-8")
    _uv("venv", "--allow-existing", "--python", sys.executable, str(folder), folder=folder)
    _uv("pip", "sync", "--offline", str(requirements), folder=folder)
    # Its path is new each time: not into the cache, which would grow.
    _uv("pip", "install", "--no-cache", "--offline", "--no-deps", str(wheel), folder=folder)
    return folder / "bin"


def _uv(*arguments: str, folder: Path) -> None:
    done = subprocess.run(
        [UV, "--quiet", *arguments],
        env=clean_environment(VIRTUAL_ENV=str(folder)),
        capture_output=True,
        text=True,
    )
    hint = "`make setup` fills the cache of uv; if `.venv` is there already, remove it before."
    assert done.returncode == 0, f"{done.stderr}\n{hint}"


def clean_environment(**variables: str) -> dict[str, str]:
    """Return the environment of this process without what could bring in packages of the checkout.

    Bytecode is written: processes of an environment begin in seconds then.
    """
    left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in left_out and not name.startswith(("DASL_", "RAY_"))
    }
    return kept | variables
