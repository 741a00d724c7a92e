"""`ApiThread`, which runs the API inside `dasl serve`."""

import socket
import threading
from pathlib import Path

import httpx

from service.db.migrate import upgrade
from service.db.session import Database
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
