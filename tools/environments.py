"""Check that every environment that people install has the packages that its modules import.

    python -m tools.environments

Part of `make lint`. An environment is the package with extras, or a lock file of an image. The modules that run
there are its entry points and all that these import, directly or not, at import time or in a function. Each package
that one of them imports must be among the environment's requirements or what these require.

An import is optional, and not followed, in the body of a `try` that handles ImportError or ModuleNotFoundError, in
`with core_extra(...)`, `server_extra()` or `suppress(ImportError)`; some extra must have its package. So it is through
`optional_module(NAME, ..., EXTRA)`, where that extra must have it. A name in another string, such as one for
`import_module`, is not seen. Which distributions a distribution requires is read in the environment of developers,
which has all of them.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.structure import PACKAGES, Module, read_modules

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_GUARDED = {"ImportError", "ModuleNotFoundError"}

_CLIENT = ("service.cli.app", "service.cli.__main__", "service.client")
_SERVER = (
    "service.cli.app",
    "service.db",
    "service.dispatcher",
    "service.doctor",
    "service.embedded",
    "service.server",
    "service.storage",
)
_CORE = ("dasl_core", "service.cli.app", "service.cli.experiment_plot")


@dataclass(frozen=True)
class Environment:
    """What people install, and what runs there."""

    extras: tuple[str, ...]
    entry_points: tuple[str, ...]
    """Modules, and packages with all of their modules."""
    lock: str | None = None
    """File in `requirements` that is installed in place of the extras' own requirements."""
    wheels: tuple[str, ...] = ()
    """Distributions that people add to the lock."""

    @property
    def name(self) -> str:
        """The lock, or the package with its extras: `dasl[core,tiff]`."""
        return self.lock or (f"dasl[{','.join(self.extras)}]" if self.extras else "dasl")

    def distributions(self) -> set[str]:
        """Return the normalized names of everything that is installed."""
        installed = closure(self.extras) if self.lock is None else _locked(self.lock)
        return installed | set(self.wheels)


ENVIRONMENTS = (
    Environment((), _CLIENT),
    Environment(("server",), _SERVER),
    Environment(("server", "oidc"), (*_SERVER, "service.login")),
    Environment(("core",), _CORE),
    Environment(("training",), (*_CORE, "workers")),
    Environment(("server", "training", "formats"), (*_SERVER, *_CORE, "workers"), "serve.lock"),
    Environment(("server", "oidc"), (*_SERVER, "service.login"), "server.lock"),
    Environment(("training", "formats"), (*_CORE, "workers"), "worker.lock"),
    Environment(
        ("training", "formats"), (*_CORE, "workers"), "worker-cpu.lock", ("torch", "torchvision")
    ),
)


@dataclass(frozen=True)
class Import:
    """A dotted name that a module imports, the line, and the extra that has it if it is optional."""

    name: str
    line: int
    extra: str = ""
    is_guarded: bool = False


class Imports:
    """What a checkout's modules import at run time; `optional`: what `optional_module` imports, with its extras."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self._paths = {module.name: module.path for module in modules}
        uses = {module.name: _imports_of(module.tree) for module in modules}
        self.optional = {
            (use.name, use.extra) for each in uses.values() for use in each if use.extra
        }
        self._guarded = {
            (name, use) for name, each in uses.items() for use in each if use.is_guarded
        }
        self._uses = {
            name: {use for use in each if not use.extra and not use.is_guarded}
            for name, each in uses.items()
        }

    def modules_in(self, environment: Environment) -> dict[str, tuple[str, ...]]:
        """Return the modules that run in an environment, each with a chain of imports to it."""
        optional = {name for name, _ in self.optional}
        waiting: list[tuple[str, ...]] = [
            (name,)
            for point in environment.entry_points
            for name in sorted(self._uses)
            if name == point or (name.startswith(f"{point}.") and name not in optional)
        ]
        chains: dict[str, tuple[str, ...]] = {}
        for chain in waiting:  # grows meanwhile: breadth first, so that chains are short
            name = chain[-1]
            if name in chains:
                continue
            chains[name] = chain
            # Importing a module imports the packages around it.
            required = {use.name for use in self._uses[name]} | {name.rpartition(".")[0]}
            waiting += [(*chain, own) for own in sorted(map(self._module, required)) if own]
        return chains

    def _module(self, name: str) -> str:
        """Return the module that a dotted name stands for: itself, or the one that defines it."""
        parent = name.rpartition(".")[0]
        return name if name in self._uses else parent if parent in self._uses else ""

    def problems(self, environments: Iterable[Environment] | None = None) -> list[str]:
        """Return a sentence for each import that an environment lacks, and each module that runs nowhere."""
        missing: dict[tuple[str, int, str], list[str]] = {}
        run = set[str]()
        behind = [(name, extra) for name, extra in self.optional if name in self._uses]
        extras = [Environment(("core", extra), (name,)) for name, extra in behind]
        for environment in (*(ENVIRONMENTS if environments is None else environments), *extras):
            installed = environment.distributions()
            for name, chain in self.modules_in(environment).items():
                run.add(name)
                for use in self._uses[name]:
                    package = missing_package(use.name, installed)
                    if package is not None:
                        lacking = missing.setdefault((name, use.line, package), [])
                        lacking.append(f"{environment.name} ({' -> '.join(chain)})")
        found = [
            f"{self._paths[name]}:{line}: imports {package}, which is missing in {'; '.join(lacking)}"
            for (name, line, package), lacking in missing.items()
        ]
        found += [
            f"optional_module({name!r}): the extra {extra} does not have it"
            for name, extra in self.optional
            if missing_package(name, closure(("core", extra))) is not None
        ]
        every = closure(tuple(PROJECT["optional-dependencies"].keys() - {"dev"}))
        found += [
            f"{self._paths[name]}:{use.line}: imports {package}, which no extra has"
            for name, use in self._guarded
            if (package := missing_package(use.name, every)) is not None
        ]
        found += [
            f"{self._paths[name]}: runs in no environment" for name in self._uses.keys() - run
        ]
        return sorted(found)


@cache
def _imports_of(tree: ast.Module) -> set[Import]:
    return set(_imports(tree))


def _imports(node: ast.AST, is_guarded: bool = False) -> Iterator[Import]:
    """Yield what a part of a module imports at run time."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        yield from (Import(name, node.lineno, is_guarded=is_guarded) for name in names)
    elif isinstance(node, ast.ImportFrom):
        assert node.module is not None, "relative imports are not used"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (Import(name, node.lineno, is_guarded=is_guarded) for name in names)
    elif isinstance(node, ast.Call) and _names(node.func) == {"optional_module"}:
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        texts = [each.value for each in values if isinstance(each, ast.Constant)]
        assert len(texts) > 1, f"line {node.lineno}: name and extra must be literals"
        yield Import(str(texts[0]), node.lineno, str(texts[-1]))
    for child, is_optional in _children(node):
        yield from _imports(child, is_guarded or is_optional)


def _children(node: ast.AST) -> list[tuple[ast.AST, bool]]:
    """Return the parts of a node, each with whether the lack of a package is handled there."""
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        is_negated = isinstance(node.test, ast.UnaryOp)
        return [(child, False) for child in (node.body if is_negated else node.orelse)]
    optional: list[ast.stmt] = []
    if isinstance(node, ast.With) and any(
        _names(each.context_expr) & {"core_extra", "server_extra", *_GUARDED} for each in node.items
    ):
        optional = node.body
    if isinstance(node, ast.Try) and any(_names(each.type) & _GUARDED for each in node.handlers):
        optional = node.body
    return [(child, child in optional) for child in ast.iter_child_nodes(node)]


def _is_type_checking(test: ast.expr) -> bool:
    """Whether a condition is `TYPE_CHECKING`, or not that."""
    bare = test.operand if isinstance(test, ast.UnaryOp) else test
    name = bare.attr if isinstance(bare, ast.Attribute) else getattr(bare, "id", "")
    return name == "TYPE_CHECKING"


def _names(node: ast.AST | None) -> set[str]:
    """Return the names in an expression, those of attributes too: `console.core_extra()`."""
    parts = list(ast.walk(node)) if node is not None else []
    attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return attributes | {part.id for part in parts if isinstance(part, ast.Name)}


def missing_package(name: str, installed: set[str]) -> str | None:
    """Return the top-level package of an imported name if none of the installed distributions has it."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in PACKAGES:
        return None
    owners = {canonicalize_name(owner) for owner in _owners().get(top, ())}
    return None if owners & installed else top


@cache
def _owners() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


@cache
def closure(extras: tuple[str, ...]) -> set[str]:
    """Return the names of the package, its requirements with these extras, and all that these require."""
    own = [(Requirement(line), "") for line in PROJECT["dependencies"]]
    waiting = [
        *own,
        *((Requirement(line), "") for x in extras for line in PROJECT["optional-dependencies"][x]),
    ]
    seen: set[tuple[str, str]] = set()
    for requirement, extra in waiting:  # grows meanwhile
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            if name == "dasl":
                lines = PROJECT["optional-dependencies"].get(wanted, [])
                waiting += [(Requirement(line), "") for line in lines]
                continue
            waiting += [(required, wanted) for required in _required(name)]
    return {"dasl"} | {name for name, _ in seen}


@cache
def _locked(lock: str) -> set[str]:
    """Return the names of the package and of what a lock pins for this platform."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    pins = re.findall(r"^(\S+?)==[^;\\\n]+(;[^\\\n]*)?", text, flags=re.M)
    pinned = [Requirement(f"{name}{marker}") for name, marker in pins]
    return {"dasl"} | {
        canonicalize_name(each.name)
        for each in pinned
        if each.marker is None or each.marker.evaluate()
    }


@cache
def _required(name: str) -> list[Requirement]:
    """Return what an installed distribution requires; nothing of one of another platform."""
    try:
        lines = metadata.distribution(name).requires or []
    except metadata.PackageNotFoundError:
        return []
    return [Requirement(line) for line in lines]


def main() -> int:
    """Print the problems of this checkout; return 1 if there are any."""
    found = Imports(read_modules(ROOT, *PACKAGES)).problems()
    for problem in found:
        print(problem)
    print(f"{len(ENVIRONMENTS)} environments checked, {len(found)} problems.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
