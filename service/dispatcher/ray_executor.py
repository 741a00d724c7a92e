"""Adapter of the executor port to Ray's HTTP API; this package does not import Ray.

It sends the same requests as Ray's Jobs client (`ray.dashboard.modules.job.sdk`) and is tested with the
version `TESTED_RAY`.
"""

import logging
import shlex
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from service.client.attempt_token import METADATA_KEY
from service.client.tls import tls_context
from service.dispatcher.executor import (
    ExecutorUnavailable,
    LogPiece,
    Submission,
    SubmissionRefused,
    SubmissionState,
)
from service.scheduling.nodes import Cluster, HeadMemory, Node

logger = logging.getLogger(__name__)

TESTED_RAY = "2.60"
_NODE_ID = "ray.io/node-id"
_HEAD = "node:__internal_head__"
"""Resource that Ray gives the head."""
_TAKEN = "already exists"
_NOT_ENDED = "non-terminal state"
# The dashboard waits up to 10 s for the node's agent before it answers a submission.
_SUBMIT_TIMEOUT = 30.0
_AGENT_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
_ASK_AGENT_AGAIN_SECONDS = 300.0
_DRIVERS_REMEMBERED = 1000
_MEMORY_EVERY_SECONDS = 15.0
# By default Ray lists 100 nodes in a random order, with up to a thousand dead ones among them.
_NODES = {
    "detail": "1",
    "limit": "10000",
    "filter_keys": "state",
    "filter_predicates": "=",
    "filter_values": "ALIVE",
}


class _Driver(NamedTuple):
    """The node that a driver runs on, and the address of Ray's agent there."""

    node: str
    agent: str


class RayExecutor:
    """Ray's Jobs API at `address`, with Ray's token authentication when a token is given."""

    def __init__(self, address: str, token: str | None, *, timeout: float = 10.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=address,
            headers=headers,
            timeout=timeout,
            trust_env=False,
            verify=tls_context(address, trust_env=False),
        )
        # The loops of the dispatcher call from different threads.
        self._lock = threading.Lock()
        self._drivers: dict[str, _Driver] = {}
        self._unreachable: dict[str, float] = {}
        """Agents that did not answer, with the time (monotonic) of the next try."""
        self._version_checked = False
        self._version: str | None = None
        self._memory_due = 0.0
        self._head_memory: HeadMemory | None = None

    def close(self) -> None:
        self._http.close()

    def submit(
        self,
        submission_id: str,
        entrypoint: str,
        env: Mapping[str, str],
        token: str,
        avoid: Collection[str] = (),
    ) -> None:
        """See `Executor.submit`. The driver reserves no CPU; its workers do."""
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        body: dict[str, Any] = {
            "submission_id": submission_id,
            # Do not use the runtime environment: Ray has standby processes only if all submissions have the same.
            "entrypoint": f"export {exports}; {entrypoint}" if exports else entrypoint,
            "metadata": {METADATA_KEY: token},
            "entrypoint_num_cpus": 0,
        }
        if avoid:
            body["entrypoint_label_selector"] = {_NODE_ID: f"!in({','.join(sorted(avoid))})"}
        answer = self._request("POST", "/api/jobs/", json=body, timeout=_SUBMIT_TIMEOUT)
        # The agent answers 400 to an existing id, and the dashboard wraps this in a 500.
        if answer.is_success or (submission_id in answer.text and _TAKEN in answer.text):
            return
        if answer.status_code == httpx.codes.BAD_REQUEST:
            raise SubmissionRefused(_last_line(answer.text))
        raise _unavailable(answer)

    def status(self, submission_id: str) -> Submission | None:
        answer = self._request("GET", f"/api/jobs/{quote(submission_id)}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        with _understood(answer):
            job = _json(answer)
            if job.get("driver_agent_http_address") and job.get("driver_node_id"):
                driver = _Driver(job["driver_node_id"], job["driver_agent_http_address"])
                with self._lock:
                    if len(self._drivers) >= _DRIVERS_REMEMBERED:
                        del self._drivers[next(iter(self._drivers))]
                    self._drivers[submission_id] = driver
            return Submission(
                state=SubmissionState(str(job["status"]).lower()),
                message=job.get("message") or "",
                exit_code=job.get("driver_exit_code"),
            )

    def logs(self, submission_id: str, start: int, count: int) -> LogPiece:
        """See `Executor.logs`.

        Ray's agent on the driver's node serves ranges of the file. If the agent is unreachable, Ray's
        head sends the whole file each time. The Jobs API would do so only for UTF-8 logs.
        """
        if submission_id not in self._drivers and self.status(submission_id) is None:
            return LogPiece(b"", 0)
        driver = self._drivers.get(submission_id)
        if driver is None:
            return LogPiece(b"", 0)  # The driver has not started.
        file = f"job-driver-{submission_id}.log"
        if self._unreachable.get(driver.agent, 0.0) <= time.monotonic():
            try:
                return self._log_from_agent(f"{driver.agent}/logs/{quote(file)}", start, count)
            except httpx.HTTPError:
                self._unreachable[driver.agent] = time.monotonic() + _ASK_AGENT_AGAIN_SECONDS
        return self._log_from_head(driver.node, file, start, count)

    def _log_from_agent(self, url: str, start: int, count: int) -> LogPiece:
        wanted = {"Range": f"bytes={start}-{start + count - 1}"}
        answer = self._http.get(url, headers=wanted, timeout=_AGENT_TIMEOUT)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return LogPiece(b"", 0)  # The driver has written nothing.
        if answer.status_code not in (
            httpx.codes.PARTIAL_CONTENT,
            httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE,
        ):
            raise httpx.HTTPStatusError(
                "not a part of a file", request=answer.request, response=answer
            )
        size = int(answer.headers["content-range"].rpartition("/")[2])
        return LogPiece(answer.content if answer.is_success else b"", size)

    def _log_from_head(self, node: str, file: str, start: int, count: int) -> LogPiece:
        wanted = {"node_id": node, "filename": file, "lines": "-1"}
        data, size = bytearray(), 0
        try:
            with self._http.stream("GET", "/api/v0/logs/file", params=wanted) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _unavailable(answer)
                for block in answer.iter_bytes():
                    data += block[max(0, start - size) : max(0, start + count - size)]
                    size += len(block)
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        return LogPiece(bytes(data), size)

    def stop(self, submission_id: str) -> None:
        """See `Executor.stop`. Ray sends SIGTERM and, 3 s later, SIGKILL."""
        answer = self._request("POST", f"/api/jobs/{quote(submission_id)}/stop")
        if answer.status_code != httpx.codes.NOT_FOUND and not answer.is_success:
            raise _unavailable(answer)

    def delete(self, submission_id: str) -> bool:
        """See `Executor.delete`. Ray leaves the log on the disk of the driver's node; `workers.ray_logs` removes it."""
        path = f"/api/jobs/{quote(submission_id)}"
        # The head forwards this to its agent.
        answer = self._request("DELETE", path, timeout=_SUBMIT_TIMEOUT)
        if _NOT_ENDED in answer.text:
            return False
        if answer.status_code != httpx.codes.NOT_FOUND and not answer.is_success:
            raise _unavailable(answer)
        with self._lock:
            self._drivers.pop(submission_id, None)
        return True

    def cluster(self) -> Cluster:
        """See `Executor.cluster`. Ray's autoscaler refreshes the usage every 5 s."""
        answer = self._request("GET", "/api/cluster_status")
        with _understood(answer):
            status = _json(answer)["data"].get("clusterStatus") or {}
            usage = (status.get("loadMetricsReport") or {}).get("usageByNode") or {}
        answer = self._request("GET", "/api/v0/nodes", params=_NODES)
        with _understood(answer):
            listed = _json(answer)["data"]["result"]["result"]
            nodes = [node for node in listed if node["state"] == "ALIVE"]
            of_nodes = tuple(_node(node, usage.get(node["node_id"], {})) for node in nodes)
        if not self._version_checked:
            self._version_checked = True
            self._version = self._checked_version()
        version = self._version
        tested = None if version is None else is_tested(version)
        return Cluster(of_nodes, version, tested, self._measured_head_memory())

    def _measured_head_memory(self) -> HeadMemory | None:
        """Return the head's memory, measured within the last seconds; `None` if unknown."""
        if time.monotonic() >= self._memory_due:
            self._memory_due = time.monotonic() + _MEMORY_EVERY_SECONDS
            self._head_memory = None
            # Without it, everything else works.
            with suppress(ExecutorUnavailable):
                answer = self._request("GET", "/nodes", params={"view": "summary"})
                with _understood(answer):
                    nodes = _json(answer)["data"]["summary"]
                    [head] = [node for node in nodes if node["raylet"].get("isHeadNode")]
                    total, available = float(head["mem"][0]), float(head["mem"][1])
                    self._head_memory = HeadMemory(total - available, total)
        return self._head_memory

    def version(self) -> str:
        """Return the version of Ray.

        Raises:
            ExecutorUnavailable: Ray does not answer, or does not report it.
        """
        answer = self._request("GET", "/api/version")
        with _understood(answer):
            return str(_json(answer)["ray_version"])

    def _checked_version(self) -> str | None:
        """Return the version of Ray, if it reports it, and warn of an untested one."""
        try:
            version = self.version()
        except ExecutorUnavailable as error:
            logger.warning("The version of Ray is unknown: %s", error)
            return None
        if not is_tested(version):
            logger.warning(
                "Ray at %s has version %s; DASL is tested with %s only",
                self._http.base_url,
                version,
                TESTED_RAY,
            )
        return version

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ExecutorUnavailable(
                f"Ray at {self._http.base_url} refuses the token in RAY_AUTH_TOKEN: {answer.text}"
            )
        return answer

    def _silent(self, error: httpx.HTTPError) -> ExecutorUnavailable:
        self._version_checked = False  # Another version may replace it.
        reason = str(error) or type(error).__name__
        return ExecutorUnavailable(f"Ray does not answer at {self._http.base_url}: {reason}")


def is_tested(version: str) -> bool:
    """Whether DASL is tested with this version of Ray; the patch version is ignored."""
    return version.split(".")[:2] == TESTED_RAY.split(".")


def _node(node: dict[str, Any], usage: dict[str, list[float]]) -> Node:
    total = node["resources_total"]
    return Node(
        id=node["node_id"],
        address=node["node_ip"],
        total_cpus=total.get("CPU", 0.0),
        total_gpus=total.get("GPU", 0.0),
        used_cpus=usage.get("CPU", [0.0])[0],
        used_gpus=usage.get("GPU", [0.0])[0],
        name=node.get("node_name") or "",
        total_memory=total.get("memory", 0.0),
        used_memory=usage.get("memory", [0.0])[0],
        is_head=_HEAD in total,
        labels={str(key): str(value) for key, value in (node.get("labels") or {}).items()},
    )


@contextmanager
def _understood(answer: httpx.Response) -> Iterator[None]:
    """Treat an unexpected answer as an outage: another version of Ray may have given it.

    Raises:
        ExecutorUnavailable: a part of the answer is missing or has another type.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ExecutorUnavailable(
            f"Ray's answer to {answer.request.method} {answer.request.url.path} differs from version "
            f"{TESTED_RAY} ({type(error).__name__}: {error})"
        ) from error


def _json(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success:
        raise _unavailable(answer)
    body = answer.json()
    if not isinstance(body, dict):
        raise TypeError(f"expected an object, not a {type(body).__name__}")
    return body


def _unavailable(answer: httpx.Response) -> ExecutorUnavailable:
    return ExecutorUnavailable(
        f"Ray answered {answer.request.method} {answer.request.url.path} with "
        f"{answer.status_code}: {_last_line(answer.text)}"
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines else "no reason given"
