"""The real API on a real port, with manual versions of the dispatcher's and workers' actions."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from service import credentials, lifecycle
from service.client import WorkerClient
from service.client.models import DatasetRecord
from service.datasets.ingests import repository as ingests
from service.db.migrate import upgrade
from service.db.session import Database
from service.protocol import IngestReport, IngestStart
from service.server.app import create_app
from service.settings import Settings
from service.tasks.repository import Tasks
from service.tokens import service as tokens

FACTS = {"num_images": 640, "num_classes": 10, "median_size": 64}
REPORT: dict[str, Any] = {
    "num_images": 640,
    "num_skipped": 2,
    "skipped": [
        {"path": "a/empty.png", "reason": "is empty"},
        {"path": "a/notes.png", "reason": "is not an image"},
    ],
    "unused": [
        "Columns that are not used: species.",
        "Ignored, as their endings are not those of images: 3 .cr2, 2 .mp4.",
    ],
    "duplicates": {
        "equal": {
            "checked": 640,
            "groups": 1,
            "superfluous": 1,
            "examples": [["a/my photo.png", "a/your photo.png"]],
        }
    },
    "warnings": ["3 images have 16 bits and only values of 0 to 4095"],
}


BELOW = "/dasl"
"""A path below which the API answers, too."""


def below_path(app: ASGIApp) -> ASGIApp:
    """Remove `BELOW` from paths, as nginx does with `location /dasl/ { proxy_pass http://HOST:PORT/; }`."""

    async def stripped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{BELOW}/"):
            names = {name: scope[name][len(BELOW) :] for name in ("path", "raw_path")}
            scope = {**scope, **names}
        await app(scope, receive, send)

    return stripped


@contextmanager
def listening(app: ASGIApp, port: int = 0) -> Iterator[tuple[str, uvicorn.Server]]:
    """Serve an app on a port of this machine; yields its address, and the server."""
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = True
        thread.join()


class Service:
    """A running API over SQLite, with an administrator's `token`."""

    def __init__(self, home: Path, *, port: int = 0, **settings: Any) -> None:
        self.settings = Settings(home=home, stream_poll_seconds=0.02, **settings)
        upgrade(self.settings.database_url)
        self.database = Database(self.settings.database_url)
        self.app = create_app(self.settings, self.database)
        with self.database.write() as session:
            _, self.token = tokens.create(session, tenant="t", name="test", scopes=["admin"])
        self._listening = listening(below_path(self.app), port)
        self.url, self._server = self._listening.__enter__()

    def close(self) -> None:
        self.app.state.context.closing.set()
        self._listening.__exit__(None, None, None)
        self.database.dispose()

    def ingest(self, dataset: DatasetRecord, *, error: str | None = None, **facts: Any) -> None:
        """Make the dataset ready, with other `facts`, or failed for the given reason, as `workers.ingest` does."""
        text, hashed = credentials.new_token()
        with self.database.write() as session:
            run = ingests.begin_ingest(session, dataset.id, hashed)
            assert run is not None
        worker = WorkerClient(self.url, text, run.submission_id)
        start = worker.task_start(IngestStart)
        assert start.uri == dataset.uri
        if error is not None:
            worker.task_failed(IngestReport, "ingest-failed", error)
            return
        uri = f"{start.artifacts_uri}/index.safetensors"
        worker.task_succeeded(IngestReport, facts={**FACTS, **facts}, report=REPORT, index_uri=uri)

    def start_attempt(self, job_id: str) -> WorkerClient:
        """Start the job's next attempt, as the dispatcher does, and return its worker client."""
        text, hashed = credentials.new_token()
        with self.database.write() as session:
            attempt = lifecycle.start_attempt(session, job_id, hashed)
            assert attempt is not None
            return WorkerClient(self.url, text, attempt.submission_id)

    def start_task(self, kind: Tasks[Any], task_id: str) -> WorkerClient:
        """Start the run of a task, such as an embedding, and return its worker client."""
        text, hashed = credentials.new_token()
        with self.database.write() as session:
            run = kind.begin(session, task_id, hashed)
            assert run is not None
            return WorkerClient(self.url, text, run=run.submission_id)

    def log(self, job_id: str, text: str) -> None:
        """Append to the log of attempt 1."""
        path = self.settings.home / "artifacts" / "jobs" / job_id / "attempts" / "1" / "driver.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)


def write_files(folder_uri: str, files: dict[str, bytes]) -> list[dict[str, object]]:
    """Write files to a worker's output folder and return their manifest."""
    folder = Path(urlsplit(folder_uri).path)
    folder.mkdir(parents=True, exist_ok=True)
    manifest: list[dict[str, object]] = []
    for name, content in files.items():
        (folder / name).write_bytes(content)
        sha = hashlib.sha256(content).hexdigest()
        manifest.append({"name": name, "size": len(content), "sha256": sha})
    return manifest


@contextmanager
def running_service(home: Path) -> Iterator[Service]:
    service = Service(home)
    try:
        yield service
    finally:
        service.close()
