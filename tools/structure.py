"""Measure the structure of the source tree: circles, upward imports, sizes, places to touch.

`python -m tools.structure` prints a table, `--json` an object, `--root DIR` measures another checkout,
so that two states can be compared:

    git worktree add /tmp/before COMMIT && python -m tools.structure --root /tmp/before

A *room* is a direct child of a package: a sub-package or a module. An import between rooms is an
*arrow*. A *circle* is a strongly connected component of more than one room. An arrow is *upward* if it
must be removed to leave no circle (greedy heuristic of Eades, Lin and Smyth, 1993).

Lines are those of files that git tracks or would add: what is generated does not count. The source
has the page's JavaScript and style sheets, without its vendored libraries.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("dasl_core", "service", "workers")
PAGE = ("*.js", "*.css")
ROOMS = (
    "dasl_core",
    "dasl_core.train",
    "dasl_core.spec",
    "service",
    "service.dispatcher",
    "workers",
)
UNRESOLVED = "resolve the spec first"
METHOD = re.compile(r"\bVICReg\b|\bvicreg\b")  # stands for all methods: no other one mentions it

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Lines of the file, blank ones and comments included."""
        return self.text.count("\n")


def list_files(root: Path, *patterns: str) -> list[Path]:
    """Return the files of a checkout that git does not ignore, relative to its root, sorted."""
    files = ["--cached", "--others", "--exclude-standard", "--deduplicate"]
    command = ["git", "-C", str(root), "ls-files", "-z", *files, "--", *patterns]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted(
        path for path in map(Path, filter(None, listed.split("\0"))) if (root / path).exists()
    )


def read_modules(root: Path, *folders: str) -> list[Module]:
    """Parse all Python files below folders of a checkout."""
    modules = []
    for folder in folders:
        for path in list_files(root, f"{folder}/*.py"):
            parts = path.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = (root / path).read_text(encoding="utf-8")
            modules.append(Module(name, path, text, ast.parse(text)))
    return modules


def lines_of_page(root: Path) -> int:
    """Return the number of lines of the page's own scripts and style sheets."""
    files = list_files(root, *(f"service/{pattern}" for pattern in PAGE))
    own = [path for path in files if "vendor" not in path.parts]
    return sum((root / path).read_text(encoding="utf-8").count("\n") for path in own)


def imports(module: Module, known: set[str]) -> Iterator[str]:
    """Yield the names of known modules that a module imports at run time."""
    for node in _run_time_nodes(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in known:
                    yield submodule
                elif node.module in known:
                    yield node.module


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without the bodies of `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for statement in child.orelse:
                yield from _run_time_nodes(statement)
        else:
            yield from _run_time_nodes(child)


def room_graph(package: str, modules: list[Module]) -> Graph:
    """Return which rooms of a package import which others."""
    known = {module.name for module in modules}
    graph: Graph = {}
    for module in modules:
        room = _room(package, module.name)
        if room is None:
            continue
        targets = graph.setdefault(room, set())
        for name in imports(module, known):
            target = _room(package, name)
            if target is not None and target != room:
                targets.add(target)
    for target in set().union(*graph.values()):
        graph.setdefault(target, set())
    return graph


def _room(package: str, name: str) -> str | None:
    """The direct child of `package` that holds the module; None outside, and for `__init__`."""
    prefix = package + "."
    return name.removeprefix(prefix).partition(".")[0] if name.startswith(prefix) else None


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one room, largest first (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(room: str) -> None:
        index[room] = low[room] = len(index)
        stack.append(room)
        for target in sorted(graph[room]):
            if target not in index:
                visit(target)
                low[room] = min(low[room], low[target])
            elif target in stack:
                low[room] = min(low[room], index[target])
        if low[room] == index[room]:
            start = stack.index(room)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                components.append(sorted(component))

    for room in sorted(graph):
        if room not in index:
            visit(room)
    return sorted(components, key=lambda component: (-len(component), component))


def upward_arrows(graph: Graph) -> list[tuple[str, str]]:
    """Return the arrows that run back up when the rooms stand in their best order."""
    upward = []
    for circle in circles(graph):
        inside = {room: graph[room] & set(circle) for room in circle}
        position = {room: place for place, room in enumerate(_order(inside))}
        upward += [(a, b) for a in circle for b in sorted(inside[a]) if position[a] > position[b]]
    return upward


def _order(graph: Graph) -> list[str]:
    """Order the rooms of a circle so that few arrows point backwards."""
    left: list[str] = []
    right: list[str] = []
    rest = {room: set(targets) for room, targets in graph.items()}

    def sources(room: str) -> int:
        return sum(room in targets for targets in rest.values())

    while rest:
        rooms = sorted(rest)
        sink = next((room for room in rooms if not rest[room]), None)
        source = next((room for room in rooms if not sources(room)), None)
        if sink is not None:
            right.insert(0, sink)
        elif source is not None:
            left.append(source)
        else:
            left.append(max(rooms, key=lambda room: len(rest[room]) - sources(room)))
        removed = sink if sink is not None else left[-1]
        del rest[removed]
        for targets in rest.values():
            targets.discard(removed)
    return left + right


def largest_class(modules: list[Module]) -> tuple[str, int]:
    """Return the name and the number of lines of the largest class."""
    sizes = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{module.path}:{node.name}")
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    lines, name = max(sizes)
    return name, lines


def measure(root: Path) -> dict[str, object]:
    """Return all figures of a checkout, by name."""
    source = read_modules(root, *PACKAGES)
    figures: dict[str, object] = {}
    for package in ROOMS:
        graph = room_graph(package, source)
        figures[f"rooms of {package}"] = len(graph)
        figures[f"arrows of {package}"] = sum(map(len, graph.values()))
        figures[f"circles of {package}"] = circles(graph)
        figures[f"upward arrows of {package}"] = [f"{a} -> {b}" for a, b in upward_arrows(graph)]
    loose = [path.stem for path in sorted((root / "service").glob("*.py"))]
    figures["loose modules in service"] = [name for name in loose if name != "__init__"]
    largest = max(source, key=lambda module: module.lines)
    figures["largest file"] = f"{largest.path} ({largest.lines} lines)"
    name, lines = largest_class(source)
    figures["largest class"] = f"{name} ({lines} lines)"
    figures["files over 500 lines"] = sum(module.lines > 500 for module in source)
    figures[f'asserts "{UNRESOLVED}"'] = sum(module.text.count(UNRESOLVED) for module in source)
    tests = read_modules(root, "tests")
    code = [module.path for module in source + tests if METHOD.search(module.text)]
    pages = [
        path.relative_to(root)
        for path in sorted((root / "docs").glob("*.md"))
        if re.search(r"^#+ .*vicreg", path.read_text(encoding="utf-8"), re.M | re.I)
    ]
    figures["files that name the method VICReg"] = [str(path) for path in code + pages]
    page = lines_of_page(root)
    figures["lines of source"] = sum(module.lines for module in source) + page
    figures["lines of the page among them"] = page
    figures["lines of tests"] = sum(module.lines for module in tests)
    figures["lines of benchmarks"] = sum(m.lines for m in read_modules(root, "benchmarks"))
    return figures


def main() -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(), help="checkout to measure")
    parser.add_argument("--json", action="store_true", help="print an object instead of a table")
    arguments = parser.parse_args()
    figures = measure(arguments.root)
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, figure in figures.items():
        if isinstance(figure, list):
            items = ["(" + " ".join(x) + ")" if isinstance(x, list) else str(x) for x in figure]
            print(f"{name:40} {len(figure):5}  {', '.join(items)}")
        elif isinstance(figure, int):
            print(f"{name:40} {figure:5}")
        else:
            print(f"{name:40} {figure}")


if __name__ == "__main__":
    main()
