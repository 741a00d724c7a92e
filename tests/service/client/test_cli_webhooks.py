"""The commands for webhooks, and the documented receiver, against the real API and a real receiver."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from service.artifacts.storage import Storage
from service.client import Client
from service.dispatcher.context import DispatcherContext, Entrypoints, utc_now
from service.dispatcher.webhooks import WebhookDelivery
from tests.support.api_server import Service
from tests.support.command_line import run, run_json
from tests.support.fake_executor import FakeExecutor
from tests.support.polling import wait_for
from tests.support.webhook_receiver import Reply, receiver

ROOT = Path(__file__).parents[3]


@contextmanager
def delivering(service: Service) -> Iterator[None]:
    """Deliver messages, as the loop of the dispatcher does."""
    executor = FakeExecutor(cpus=1)
    context = DispatcherContext(
        service.settings,
        service.database,
        Storage(service.settings.artifacts_uri),
        executor,
        utc_now,
        "test",
        Entrypoints(),
    )
    loop, stop = WebhookDelivery(context), threading.Event()

    def run() -> None:
        while not stop.wait(0.02):
            assert context.take_lease()
            loop.round()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        executor.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An API and the delivery of its webhooks, also to this machine."""
    home = tmp_path_factory.mktemp("home")
    service = Service(home, webhook_allowed_hosts="127.0.0.1", public_url="https://dasl.test/")
    try:
        with delivering(service):
            yield service
    finally:
        service.close()


@pytest.fixture(autouse=True)
def connected(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_URL", service.url)
    monkeypatch.setenv("DASL_TOKEN", service.token)


def _run(*arguments: object, code: int = 0) -> Result:
    return run("webhooks", *arguments, code=code)


def _json(*arguments: object) -> Any:
    return run_json("webhooks", *arguments)


def test_life_of_a_webhook() -> None:
    with receiver() as hook:
        options = ["--name", "chat", "--event", "job.failed", "--tag", "team:vision"]
        created = _run("create", hook.url, *options)
        secret = created.stdout.strip()
        assert "not shown again" in created.stderr
        (webhook,) = _json("list")
        assert (webhook["name"], webhook["tags"]) == ("chat", {"team": "vision"})
        assert "team:vision" in _run("list").stdout
        id = webhook["id"]
        assert "204 in" in _run("test", id).stdout
        rotated = _run("rotate", id, "--keep-hours", "1")
        assert "valid until" in rotated.stderr
        assert _json("test", id)["state"] == "succeeded"
        first, second = hook.requests
        payload = first.verified(secret)
        assert (payload["type"], payload["data"]["url"]) == (
            "webhook.test",
            "https://dasl.test/#/jobs",
        )
        assert second.verified(secret) == second.verified(rotated.stdout.strip())
        changed = _json("set", id, "--event", "*")
        assert (changed["events"], changed["tags"]) == (["*"], {"team": "vision"})
        sent = _json("deliveries", id, "--state", "succeeded")
        assert [each["id"] for each in sent] == [second.id, first.id]
        assert "webhook.test" in _run("deliveries", id, "--limit", 1).stdout
        _run("redeliver", id, first.id)
        wait_for(lambda: len(hook.requests) == 3)
        assert hook.requests[2].id == first.id
    assert "is disabled" in _run("disable", id).stdout
    assert "webhooks enable" in _run("test", id, code=1).stderr
    assert "A person disabled it" in _run("show", id).stdout
    assert "is enabled" in _run("enable", id).stdout
    assert _json("rm", id) == {"deleted": id}
    assert "dasl webhooks list" in _run("show", id, code=1).stderr


def test_failed_test_says_why() -> None:
    with receiver(lambda _: Reply(500)) as hook:
        id = _json("create", hook.url, "--slack")["id"]
        failed = _run("test", id, code=1)
    assert "the receiver answers 500. It is sent again" in failed.stderr
    _run("rm", id)


def test_wrong_use_is_told_before_a_request() -> None:
    assert "KEY:VALUE" in _run("create", "https://x.test", "--tag", "vision", code=2).stderr
    assert "at least one change" in _run("set", "whk_x", code=2).stderr
    assert "uses http" in _run("create", "http://hooks.example.org", code=1).stderr


def test_documented_receiver_prints_verified_messages(service: Service, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/api.md").read_text(), re.S | re.M)
    (code,) = [block for block in blocks if "class Receiver" in block]
    script, output = tmp_path / "receiver.py", tmp_path / "output"
    script.write_text(code)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Client() as client:
        webhook = client.webhooks.create(f"http://127.0.0.1:{port}/")
        environment = os.environ | {"WEBHOOK_SECRET": webhook.secret, "PORT": str(port)}
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, script], env=environment, stdout=file, stderr=subprocess.DEVNULL
            )
        try:
            wait_for(lambda: _is_open(port))
            sent = client.webhooks.wait(webhook.id, client.webhooks.test(webhook.id).id)
            forged = client.webhooks.rotate(webhook.id, keep_hours=0)
            refused = client.webhooks.wait(webhook.id, client.webhooks.test(forged.id).id)
        finally:
            process.kill()
            process.wait()
        client.webhooks.delete(webhook.id)
    assert (sent.state, sent.response_status) == ("succeeded", 204)
    assert (refused.state, refused.response_status) == ("pending", 400)
    assert output.read_text() == "webhook.test This is a test of a webhook\n"


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
