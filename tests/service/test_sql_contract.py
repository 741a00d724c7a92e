"""SQL statements are only in `repository.py` or a package `repository`, `lifecycle.py` and `service/db`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATEMENTS = {"delete", "func", "insert", "select", "text", "update"}
SESSION_METHODS = {
    "add",
    "add_all",
    "delete",
    "execute",
    "get",
    "get_one",
    "merge",
    "query",
    "refresh",
    "scalar",
    "scalars",
}
SESSIONS = {"session", "reading"}


def may_hold_sql(path: Path) -> bool:
    return (
        path.name == "repository.py"
        or path.parent.name == "repository"
        or path == ROOT / "service/lifecycle.py"
        or path.is_relative_to(ROOT / "service/db")
    )


def sql_in(tree: ast.Module) -> Iterator[str]:
    """Yield a module's imported SQL statements and calls of session methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
            yield from (alias.name for alias in node.names if alias.name in STATEMENTS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = node.func.value
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            if name in SESSIONS and node.func.attr in SESSION_METHODS:
                yield f"{name}.{node.func.attr}"


def test_sql_statements_are_only_in_repositories() -> None:
    statements = {
        str(path.relative_to(ROOT)): sorted(set(sql_in(ast.parse(path.read_text()))))
        for path in (ROOT / "service").rglob("*.py")
        if not may_hold_sql(path)
    }
    assert {path: sql for path, sql in statements.items() if sql} == {}


@pytest.mark.parametrize(
    ("source", "sql"),
    [
        ("from sqlalchemy import select", ["select"]),
        ("from sqlalchemy.dialects.sqlite import insert as upsert", ["insert"]),
        ("def f(session): return session.get(Job, 1)", ["session.get"]),
        ("class A:\n    def f(self): self.session.add(1)", ["session.add"]),
        ("from sqlalchemy.orm import Session\nsession.flush()", []),
        ("client.get('/v1/jobs')", []),
    ],
)
def test_sql_in_recognizes_statements_and_session_calls(source: str, sql: list[str]) -> None:
    assert list(sql_in(ast.parse(source))) == sql
