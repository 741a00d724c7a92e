"""The client-only install: what runs with the dependencies of the package without extras."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def distributions_of_the_client() -> set[str]:
    """Return the names of the dependencies without extras, and of what these depend on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting, found = list(project["dependencies"]), set[str]()
    while waiting:
        requirement = waiting.pop()
        if "extra ==" in requirement:
            continue
        match = re.match(r"[\w.-]+", requirement)
        assert match
        name = re.sub(r"[-_.]+", "-", match[0]).lower()
        if name in found:
            continue
        try:
            required = distribution(name).requires or []
        except ModuleNotFoundError:  # of another platform
            continue
        found.add(name)
        waiting += required
    return found


@pytest.fixture(scope="module")
def only_client() -> str:
    """Python code after which every package that the client-only install lacks cannot be imported."""
    installed = distributions_of_the_client() | {"dasl"}
    missing = {
        module
        for module, owners in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & installed
    }
    assert {"torch", "ray", "fastapi", "sqlalchemy", "numpy"} <= missing
    assert missing.isdisjoint({"httpx", "pydantic", "typer", "yaml"})
    return REFUSE.format(missing=missing)


def run(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "DASL_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )


def command(only_client: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"sys.argv = ['dasl', *{list(arguments)!r}]\nfrom service.cli import main\nmain()"
    return run(only_client + code, tmp_path)


def test_python_client_can_be_imported_and_built(only_client: str, tmp_path: Path) -> None:
    code = (
        "import asyncio\nfrom service.client import AsyncClient, Client\n"
        "Client('http://127.0.0.1:9', 'dasl_x').close()\n"
        "asyncio.run(AsyncClient('http://127.0.0.1:9', 'dasl_x').close())"
    )
    ended = run(only_client + code, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_commands_that_need_no_server_run(only_client: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("dataset: birds\n", encoding="utf-8")
    for arguments in (["--help"], ["validate", "spec.yaml", "--local"], ["backbones", "resnet18"]):
        ended = command(only_client, tmp_path, *arguments)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout


def test_commands_of_the_server_ask_for_it(only_client: str, tmp_path: Path) -> None:
    for arguments in (["jobs"], ["submit", "spec.yaml"], ["datasets", "list"]):
        (tmp_path / "spec.yaml").write_text("dataset: birds\n", encoding="utf-8")
        ended = command(only_client, tmp_path, *arguments)
        assert ended.returncode == 1
        assert "http://127.0.0.1:9" in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["train", "spec.yaml"], 'pip install ".[core]"'),
        (["preview", "spec.yaml"], 'pip install ".[core]"'),
        (["serve"], 'pip install ".[server,training]"'),
    ],
)
def test_other_commands_name_their_extra(
    only_client: str, tmp_path: Path, arguments: list[str], extra: str
) -> None:
    (tmp_path / "spec.yaml").write_text("dataset: birds\n", encoding="utf-8")
    ended = command(only_client, tmp_path, *arguments)
    assert ended.returncode == 1
    assert extra in ended.stderr
    assert "Traceback" not in ended.stderr
