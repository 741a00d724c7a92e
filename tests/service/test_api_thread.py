"""`ApiThread`, which runs the API inside `dasl serve`."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx

from service.db.migrate import upgrade
from service.db.session import Database
from service.server.thread import ApiThread
from service.settings import Settings


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
