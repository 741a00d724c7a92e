"""Imports that a published environment lacks are found in every room."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tools.environments import ROOT, Environment, Imports
from tools.structure import PACKAGES, Module, read_modules

LAZY = "\ndef _planted():\n    import {}\n"
# `make lint` runs the tool itself.
pytestmark = pytest.mark.slow

GUARDED = "\ntry:\n    import {}\nexcept ImportError:\n    pass\n"


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules(ROOT, *PACKAGES)


def room_of(module: Module) -> str:
    return ".".join(module.name.split(".")[:2])


def planted(modules: list[Module], code: Callable[[Module], str]) -> list[Module]:
    """Append code to the first module of each room."""
    seen, changed = set[str](), []
    for module in modules:
        first = room_of(module) not in seen
        seen.add(room_of(module))
        tree = ast.parse(module.text + code(module)) if first else module.tree
        changed.append(replace(module, tree=tree))
    assert len(seen) > 60
    return changed


def test_published_environments_have_what_their_modules_import(modules: list[Module]) -> None:
    assert Imports(modules).problems() == []


def test_import_that_an_environment_lacks_is_found_in_each_room(modules: list[Module]) -> None:
    """One of developers in every room; in a function of core and workers the server's, of the service torch."""
    elsewhere = {"dasl_core": "sqlalchemy", "workers": "sqlalchemy", "service": "torch"}

    def both(module: Module) -> str:
        other = elsewhere[module.name.partition(".")[0]]
        return "\nimport hypothesis\n" + LAZY.format(other)

    found = Imports(planted(modules, both)).problems()
    for package in ("hypothesis", "sqlalchemy", "torch"):
        named = {line.partition(":")[0] for line in found if f"imports {package}," in line}
        rooms = {room_of(module) for module in modules if str(module.path) in named}
        expected = {
            room_of(module)
            for module in modules
            if package in ("hypothesis", elsewhere[module.name.partition(".")[0]])
        }
        assert rooms == expected


def test_guarded_import_is_optional_and_of_an_extra(modules: list[Module]) -> None:
    code = GUARDED.format("pyarrow") + "\nif TYPE_CHECKING:\n    import hypothesis\n"
    assert Imports(planted(modules, lambda _: code)).problems() == []
    for code in (GUARDED.format("hypothesis"), "\nif not TYPE_CHECKING:\n    import hypothesis\n"):
        found = Imports(planted(modules, lambda _: code)).problems()  # noqa: B023
        assert len({line.partition(":")[0] for line in found}) > 60


def test_package_of_the_server_behind_an_import_of_the_workers_is_found(
    modules: list[Module],
) -> None:
    """No job could train in the containers: `workers.ray_logs` imported `service.ids`."""
    changed = [
        replace(module, tree=ast.parse(module.text + "\nfrom service.ids import new_id\n"))
        if module.name == "workers.ray_logs"
        else module
        for module in modules
    ]
    [problem] = Imports(changed).problems()
    assert problem.startswith("service/ids.py:")
    for environment in ("dasl[training]", "worker.lock", "worker-cpu.lock"):
        assert f"{environment} (workers.ray_logs -> service.ids)" in problem


def test_module_without_environment_and_wrong_extra_are_found(modules: list[Module]) -> None:
    only_client = [Environment((), ("service.client",))]
    found = Imports(modules).problems(only_client)
    assert "workers/rank.py: runs in no environment" in found
    wrong = 'def decode():\n    optional_module("rawpy", "the image is camera RAW", "tiff")\n'
    one = Module("service.client.raw", Path("service/client/raw.py"), wrong, ast.parse(wrong))
    [problem] = Imports([one]).problems(only_client)
    assert problem == "optional_module('rawpy'): the extra tiff does not have it"


def test_workers_may_import_only_what_the_contract_lists(tmp_path: Path) -> None:
    for package in (*PACKAGES, "benchmarks"):
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=lambda _, names: [
                name
                for name in names
                if re.search(r"\.(gz|json|js|svg|css|webp)$|__pycache__", name)
            ],
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    files = [file for file in (tmp_path / "workers").glob("*.py") if file.name != "__init__.py"]
    for file in files:
        with file.open("a") as opened:
            opened.write("\nfrom service import states\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    named = set(re.findall(r"workers\.(\w+) -> service\.states", done.stdout))
    assert named == {file.stem for file in files}
