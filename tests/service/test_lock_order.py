"""Locks of rows have one order: two transactions with different orders would wait for each other."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event

from tests.support.api_under_test import Api
from tests.support.every_operation import OPERATIONS, every_resource

ORDER = ("tenants", "tokens", "users", "jobs", "checkpoints", "datasets")


def locked(statement: str) -> str | None:
    """Return the table whose rows a statement locks."""
    found = re.search(
        r"\bFROM (\w+)\b.*\bFOR (?:NO KEY )?(?:UPDATE|SHARE|KEY SHARE)(?: OF (\w+))?",
        statement,
        re.DOTALL,
    )
    return (found[2] or found[1]) if found else None


@pytest.fixture
def transactions(api: Api) -> Iterator[list[list[str]]]:
    """The tables that each transaction has locked, in order."""
    ended: list[list[str]] = []
    open_now: dict[int, list[str]] = {}

    def ran(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if (table := locked(statement)) in ORDER:
            open_now.setdefault(id(connection), []).append(str(table))

    def ends(connection: Any) -> None:
        ended.append(open_now.pop(id(connection), []))

    engine = api.database.engine
    event.listen(engine, "before_cursor_execute", ran)
    event.listen(engine, "commit", ends)
    event.listen(engine, "rollback", ends)
    yield ended
    for name, listener in (("before_cursor_execute", ran), ("commit", ends), ("rollback", ends)):
        event.remove(engine, name, listener)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_every_request_locks_in_one_order(api: Api, transactions: list[list[str]]) -> None:
    """28 of 182 requests of one token for previews and refreshes were ended by PostgreSQL as deadlocks."""
    with every_resource(api) as world:
        # A quota locks the row that it is in.
        token = api.token(
            "operator", max_queued_jobs=99, max_pending_datasets=99, max_uploaded_bytes=99
        )
        for operation in sorted(OPERATIONS, key=lambda each: each.startswith("DELETE")):
            world.send(operation, token)
    several = [tables for tables in transactions if len(set(tables)) > 1]
    assert {("tokens", "datasets"), ("checkpoints", "datasets"), ("tokens", "checkpoints")} <= {
        (first, second) for tables in several for first in tables for second in tables
    }
    for tables in several:
        first = list(dict.fromkeys(tables))
        assert first == sorted(first, key=ORDER.index), tables
