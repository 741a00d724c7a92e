"""The synchronous client is written from the asynchronous one."""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.client import AsyncClient, Client
from tools import sync_client
from tools.sync_client import synchronous


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("async with aclosing(a) as b:", "with closing(a) as b:"),
        ("x: AsyncGenerator[dict[str, int], None]", "x: Generator[dict[str, int], None, None]"),
        ("fetch: Callable[[], Awaitable[State]]", "fetch: Callable[[], State]"),
        ("await stack.enter_async_context(a)", "stack.enter_context(a)"),
        ("first = await anext(x, None)", "first = next(x, None)"),
        ("async def __aexit__(self) -> None:", "def __exit__(self) -> None:"),
        (
            "from service.client.aio.jobs import AsyncJobs",
            "from service.client.sync.jobs import Jobs",
        ),
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


def test_main_writes_what_changed_and_removes_what_has_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_client, "CLIENT", tmp_path)
    for name in ("aio/jobs.py", "aio/threads.py", "sync/old.py", "sync/threads.py", "sync/jobs.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("async def wait(): ...\n", encoding="utf-8")
    sync_client.main()
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("sync/*.py")}
    assert written == {
        "jobs.py": sync_client.HEADER.format(name="jobs.py") + "def wait(): ...\n",
        "threads.py": "async def wait(): ...\n",
    }


def test_missing_modules_are_named_with_the_remedy(tmp_path: Path) -> None:
    package = tmp_path / "sync"
    package.mkdir()
    source = Path(sync_client.__file__).parents[1] / "service/client/sync/__init__.py"
    shutil.copy(source, package)
    command = [sys.executable, "-c", "import sync.client"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "Run `make setup` or `pip install --editable .`" in done.stderr
