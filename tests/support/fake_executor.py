"""An executor that runs its commands as plain local processes.

It passes the same conformance suite as Ray's adapter. For the dispatcher's tests it can also end
drivers, lose all processes, be unavailable, and count submissions.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from service.dispatcher.executor import ExecutorUnavailable, LogPiece, Submission, SubmissionState
from service.scheduling.nodes import Cluster, Node

# Reads its end from standard input: an exit code, and the lines to print, separated by `|`.
DRIVER = 'echo "driver $0 $1"; read code text; echo "$text" | tr "|" "\\n"; exit "$code"'


class FakeExecutor:
    """A `service.dispatcher.executor.Executor` that runs local processes."""

    def __init__(self, cpus: float = 2, gpus: float = 0) -> None:
        self.nodes = [Node("node-1", "127.0.0.1", cpus, gpus, 0, 0)]
        self.away = False
        self.submitted: list[str] = []
        """Ids of the commands that ran, in order."""
        self.envs: dict[str, dict[str, str]] = {}
        """Environment of each command, including its token."""
        self.avoided: dict[str, frozenset[str]] = {}
        """Nodes that a command was not to run on."""
        self.stopped: list[str] = []
        self.log_bytes_read = 0
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._logs = tempfile.TemporaryDirectory()
        self._lock = threading.Lock()

    def submit(
        self,
        submission_id: str,
        entrypoint: str,
        env: Mapping[str, str],
        token: str,
        avoid: Collection[str] = (),
    ) -> None:
        self._check()
        self.avoided[submission_id] = frozenset(avoid)
        with self._lock:
            if submission_id in self._processes:
                return
            self.submitted.append(submission_id)
            own = self.envs[submission_id] = {**env, "DASL_WORKER_TOKEN": token}
            with self._log(submission_id).open("wb") as log:
                self._processes[submission_id] = subprocess.Popen(
                    ["sh", "-c", entrypoint],
                    env={**os.environ, **own},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            if DRIVER in entrypoint:
                # A test may kill the driver at once, and its first output must not depend on that race.
                self._wait_for_first_line(submission_id)

    def status(self, submission_id: str) -> Submission | None:
        self._check()
        process = self._processes.get(submission_id)
        if process is None:
            return None
        code = process.poll()
        if code is None:
            return Submission(SubmissionState.RUNNING)
        if submission_id in self.stopped:
            return Submission(SubmissionState.STOPPED, exit_code=code)
        return Submission(
            SubmissionState.SUCCEEDED if code == 0 else SubmissionState.FAILED, exit_code=code
        )

    def logs(self, submission_id: str, start: int, count: int) -> LogPiece:
        self._check()
        log = self._log(submission_id)
        content = log.read_bytes() if log.exists() else b""
        self.log_bytes_read += len(content[start : start + count])
        return LogPiece(content[start : start + count], len(content))

    def stop(self, submission_id: str) -> None:
        self._check()
        process = self._processes.get(submission_id)
        if process is not None and process.poll() is None:
            self.stopped.append(submission_id)
            self.kill(submission_id, signal.SIGTERM)

    def delete(self, submission_id: str) -> bool:
        self._check()
        if self.is_running(submission_id):
            return False
        self._processes.pop(submission_id, None)
        return True

    def cluster(self) -> Cluster:
        self._check()
        return Cluster(tuple(self.nodes))

    def close(self) -> None:
        """Kill all processes and remove the logs."""
        self.lose_everything()
        self._logs.cleanup()

    def _wait_for_first_line(self, submission_id: str) -> None:
        deadline = time.monotonic() + 120
        while "\n" not in self._log(submission_id).read_text():
            assert time.monotonic() < deadline, f"{submission_id} said nothing"
            time.sleep(0.002)

    def end(self, submission_id: str, code: int, text: str = "") -> None:
        """Let a `DRIVER` print a line and exit, and wait for its end."""
        process = self._processes[submission_id]
        process.communicate(f"{code} {text}\n")

    def output(self, submission_id: str) -> str:
        """Wait until a command has ended by itself, and return its output, also that of a deleted one."""
        if (process := self._processes.get(submission_id)) is not None:
            process.wait(timeout=120)
        return self._log(submission_id).read_text()

    def kill(self, submission_id: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a driver's process group and wait for the driver's end."""
        process = self._processes[submission_id]
        os.killpg(process.pid, number)
        process.communicate()

    def lose_everything(self) -> None:
        """Kill and forget all processes, as a restart of the cluster does."""
        for submission_id, process in self._processes.items():
            if process.poll() is None:
                self.kill(submission_id)
            self._log(submission_id).unlink(missing_ok=True)
        self._processes.clear()

    def is_running(self, submission_id: str) -> bool:
        """Return whether the submission's driver is running."""
        process = self._processes.get(submission_id)
        return process is not None and process.poll() is None

    def write_log(self, submission_id: str, content: bytes) -> None:
        """Append to a driver's log, as if the driver had written it."""
        with self._log(submission_id).open("ab") as log:
            log.write(content)

    def _log(self, submission_id: str) -> Path:
        return Path(self._logs.name) / f"{submission_id}.log"

    def _check(self) -> None:
        if self.away:
            raise ExecutorUnavailable("the fake is away")
