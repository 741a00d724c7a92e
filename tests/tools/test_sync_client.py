"""The synchronous client is written from the asynchronous one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from service.client import AsyncClient, Client
from tools.sync_client import CLIENT, generate, synchronous


def test_synchronous_client_is_up_to_date() -> None:
    outdated = [
        path.name for path, text in generate().items() if path.read_text(encoding="utf-8") != text
    ]
    assert outdated == [], "run: python -m tools.sync_client"


def test_only_written_modules_say_so() -> None:
    marked = {
        path
        for path in CLIENT.glob("*.py")
        if path.read_text(encoding="utf-8").startswith("# Written by tools.sync_client")
    }
    assert marked == set(generate())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("async with aclosing(a) as b:", "with closing(a) as b:"),
        ("x: AsyncGenerator[dict[str, int], None]", "x: Generator[dict[str, int], None, None]"),
        ("fetch: Callable[[], Awaitable[State]]", "fetch: Callable[[], State]"),
        ("await stack.enter_async_context(a)", "stack.enter_context(a)"),
        ("first = await anext(x, None)", "first = next(x, None)"),
        ("async def __aexit__(self) -> None:", "def __exit__(self) -> None:"),
        ("from service.client.aio.jobs import AsyncJobs", "from service.client.jobs import Jobs"),
        ("[x async for x in y]", "[x for x in y]"),
        ("an awaitable that awaits, asynchronously", "an awaitable that awaits, asynchronously"),
    ],
)
def test_asynchronous_code_becomes_synchronous(before: str, after: str) -> None:
    assert synchronous(before) == after


def public(owner: object) -> dict[str, list[tuple[object, ...]]]:
    """Names, kinds and presence of the default of all parameters of the public methods of an object."""
    return {
        name: [
            (each.name, each.kind, each.default is each.empty)
            for each in inspect.signature(method).parameters.values()
        ]
        for name, method in inspect.getmembers(owner, callable)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods() -> None:
    blocking, asynchronous = Client("http://127.0.0.1:9"), AsyncClient("http://127.0.0.1:9")
    resources: dict[str, Any] = {
        name: each for name, each in vars(blocking).items() if not name.startswith("_")
    }
    assert {"jobs", "datasets", "checkpoints", "webhooks"} <= set(resources)
    for name, resource in [("", blocking), *resources.items()]:
        other = getattr(asynchronous, name) if name else asynchronous
        assert public(resource) == public(other), name
    blocking.close()
