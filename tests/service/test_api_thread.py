"""`ApiThread`, which runs the API inside `dasl serve`."""

import socket
import threading
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from service.api import json_body
from service.db.migrate import upgrade
from service.db.session import Database
from service.server import headers
from service.server.thread import ApiThread
from service.settings import Settings
from tests.support.polling import wait_for


def test_api_thread_answers_requests_sent_before_it_started(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    upgrade(settings.database_url)
    with socket.socket() as listener, socket.socket() as early:
        listener.bind(("127.0.0.1", 0))
        api = ApiThread(settings, Database(settings.database_url), listener)
        host, port = listener.getsockname()
        early.connect((host, port))  # would be refused if the socket did not listen yet
        early.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        api.start()
        try:
            assert early.recv(1024).startswith(b"HTTP/1.1 200")
            assert httpx.get(f"http://{host}:{port}/livez").json()["status"] == "ok"
        finally:
            api.stop()


def test_unfinished_requests_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them, which need no token, took all file descriptors for good."""
    monkeypatch.setattr(headers, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(json_body, "BODY_SECONDS", 0.3)
    settings = Settings(home=tmp_path)
    upgrade(settings.database_url)
    whole = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    body = b"POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    sent = {
        b"": b"",
        whole[:-9]: b"",
        whole + whole[:-9]: b"HTTP/1.1 200",
        body: b"HTTP/1.1 408",
    }
    # The rest of a body that no endpoint reads, of which a byte comes after the answer.
    early = b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        api = ApiThread(settings, Database(settings.database_url), listener)
        api.start()
        stack.callback(api.stop)
        for content, expected in sent.items():
            address = listener.getsockname()
            client = stack.enter_context(socket.create_connection(address, timeout=30))
            client.sendall(content)
            answer = b"".join(iter(partial(client.recv, 1024), b""))
            assert answer[: len(expected) or None] == expected, content
        client = stack.enter_context(socket.create_connection(address, timeout=30))
        client.sendall(early)
        assert client.recv(1024).startswith(b"HTTP/1.1 200")
        client.sendall(b"{")
        with suppress(ConnectionResetError):
            assert b"HTTP/1.1" not in b"".join(iter(partial(client.recv, 1024), b""))


def test_answer_that_nobody_reads_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of them, which need no token, took the memory of the API for good."""
    monkeypatch.setattr(headers, "READ_SECONDS", 0.3)
    dropped = threading.Event()
    monkeypatch.setattr(headers.TimedHeaders, "connection_lost", lambda *_: dropped.set())
    settings = Settings(home=tmp_path)
    upgrade(settings.database_url)
    with socket.socket() as listener, socket.socket() as client:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        api = ApiThread(settings, Database(settings.database_url), listener)
        api.start()
        try:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(listener.getsockname())
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")

            wait_for(dropped.is_set)
            assert len(b"".join(iter(partial(client.recv, 1024), b""))) < 100_000
        finally:
            api.stop()


def test_api_thread_is_stuck_while_its_event_loop_is_blocked(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    upgrade(settings.database_url)
    go_on = threading.Event()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        api = ApiThread(settings, Database(settings.database_url), listener)
        assert api.stuck() is None, "it has not started"
        api.start()
        try:
            wait_for(lambda: api._app.state.loop is not None)
            assert api.stuck() is None
            wait_for(lambda: api._check is not None and api._check.done())
            api._app.state.loop.call_soon_threadsafe(go_on.wait)
            assert api.stuck() is None, "it is blocked, but not for long"
            api._checked_at -= settings.stuck_seconds
            assert (api.stuck() or "").startswith("The API has not begun a request for 90")
            go_on.set()
            wait_for(lambda: api.stuck() is None)
        finally:
            go_on.set()
            api.stop()
