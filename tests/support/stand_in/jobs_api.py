"""A stand-in for Ray's Jobs API: `python -m tests.support.stand_in.jobs_api PORT CPUS FOLDER`.

It answers the requests of `service.dispatcher.ray_executor`, and runs each entry point as a plain
process, once for each submission id. A driver runs with the ranks of `tests.support.stand_in.training`.
Tests of the dispatcher alone use `tests.support.fake_executor`, which needs no process for Ray.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from service.client.attempt_token import RAY_JOB_CONFIG
from service.dispatcher.ray_executor import TESTED_RAY
from tests.support.polling import until
from tests.support.processes import free_port, training


class StandInRay:
    """The stand-in as a process, with the interface of `service.embedded.local_ray.LocalRay`."""

    token = "none"

    def __init__(self, log: Path, cpus: int) -> None:
        self._log, self._cpus, self._port = log, cpus, free_port()
        self.address = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it responds."""
        arguments = [str(self._port), str(self._cpus), str(self._log.parent)]
        command = ["-m", "tests.support.stand_in.jobs_api", *arguments]
        with self._log.open("ab") as log:
            # Entrypoints name `python`: this one, also where its environment is not activated.
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            environment = os.environ | {"PATH": path}
            self._process = subprocess.Popen(
                [sys.executable, *command], stdout=log, stderr=log, env=environment
            )
        until(self._answers, "the stand-in for Ray")

    def stop(self) -> None:
        """Stop the process and everything that it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def kill_head(self) -> None:
        """Kill the process and all drivers, and start another one, which knows no submission."""
        assert self._process is not None
        drivers = [p.pid for p in training(os.getpid()) if p.part == "driver"]
        for pid in (self._process.pid, *drivers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self.start()

    def _answers(self) -> bool | None:
        try:
            return httpx.get(f"{self.address}/api/v0/nodes", trust_env=False).is_success or None
        except httpx.TransportError:
            return None


class Jobs:
    """The processes of all submissions."""

    def __init__(self, folder: Path, cpus: int) -> None:
        self.folder, self.cpus = folder, cpus
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: set[str] = set()
        self.lock = threading.Lock()

    def submit(self, name: str, entrypoint: str, variables: dict[str, str]) -> bool:
        """Run an entry point; return False if the name exists."""
        with self.lock:
            if name in self.processes:
                return False
            with self.log(name).open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    entrypoint.replace("workers.driver", "tests.support.stand_in.training"),
                    shell=True,
                    env=os.environ | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            return True

    def status(self, name: str) -> tuple[str, int | None] | None:
        """Return Ray's name of the state, and the exit code."""
        process = self.processes.get(name)
        if process is None:
            return None
        code = process.poll()
        if code is None:
            return "RUNNING", None
        if name in self.stopped:
            return "STOPPED", code
        return ("SUCCEEDED" if code == 0 else "FAILED"), code

    def stop(self, name: str) -> None:
        """End a submission with all its processes."""
        process = self.processes.get(name)
        if process is not None and process.poll() is None:
            self.stopped.add(name)
            os.killpg(process.pid, signal.SIGKILL)

    def log(self, name: str) -> Path:
        """Return the file with its output."""
        return self.folder / f"job-driver-{name}.log"


def handler(jobs: Jobs, address: str) -> type[BaseHTTPRequestHandler]:
    """Return a request handler for these jobs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or "{}")
            if self.path == "/api/jobs/":
                name = body["submission_id"]
                variables = {RAY_JOB_CONFIG: json.dumps({"metadata": body["metadata"]})}
                fresh = jobs.submit(name, body["entrypoint"], variables)
                text = {"submission_id": name} if fresh else f"Job {name} already exists."
                self.answer(200 if fresh else 500, text)
            else:
                jobs.stop(self.path.split("/")[3])
                self.answer(200, {"stopped": True})

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith("/api/jobs/"):
                self.show(path.removeprefix("/api/jobs/"))
            elif path.startswith("/logs/"):
                self.part_of(jobs.folder / path.removeprefix("/logs/"))
            elif path == "/api/version":
                self.answer(200, {"ray_version": TESTED_RAY})
            elif path == "/api/v0/nodes":
                node = {"node_id": "node", "node_ip": "127.0.0.1", "state": "ALIVE"}
                node |= {"resources_total": {"CPU": jobs.cpus}}  # type: ignore[dict-item]
                self.answer(200, {"data": {"result": {"result": [node]}}})
            else:
                self.answer(200, {"data": {"clusterStatus": {}}})

        def show(self, name: str) -> None:
            status = jobs.status(name)
            if status is None:
                self.answer(404, f"Job {name} does not exist")
                return
            self.answer(
                200,
                {
                    "status": status[0],
                    "message": "",
                    "driver_exit_code": status[1],
                    "driver_node_id": "node",
                    "driver_agent_http_address": address,
                },
            )

        def part_of(self, log: Path) -> None:
            content = log.read_bytes() if log.exists() else b""
            first, last = self.headers["range"].removeprefix("bytes=").split("-")
            part = content[int(first) : int(last) + 1]
            self.send_response(206 if part else 416)
            where = f"{first}-{int(first) + len(part) - 1}" if part else "*"
            self.send_header("Content-Range", f"bytes {where}/{len(content)}")
            self.finish_with(part)

        def answer(self, status: int, body: object) -> None:
            self.send_response(status)
            self.finish_with(json.dumps(body).encode())

        def finish_with(self, content: bytes) -> None:
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    return Handler


def main() -> None:
    """Serve until SIGTERM, then end all submissions."""
    port, cpus = int(sys.argv[1]), int(sys.argv[2])
    # A killed process leaves its folder behind.
    with tempfile.TemporaryDirectory(prefix="standin-", dir=sys.argv[3]) as folder:
        jobs = Jobs(Path(folder), cpus)
        address = f"http://127.0.0.1:{port}"
        server = ThreadingHTTPServer(("127.0.0.1", port), handler(jobs, address))
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever(0.1)
        for name in [*jobs.processes]:
            jobs.stop(name)
        while any(process.poll() is None for process in jobs.processes.values()):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
