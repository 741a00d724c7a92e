"""Ray behind the executor port, over its HTTP API alone: this package imports no Ray.

Paths, header and bodies are those of Ray's own Jobs client (`ray.dashboard.modules.job.sdk`).
Written against and tested with Ray 2.60.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from service.dispatcher.executor import (
    Cluster,
    ExecutorUnavailable,
    Node,
    Run,
    RunState,
    SubmissionRefused,
)

_TAKEN = "already exists"
# The dashboard waits up to 10 s for the node's agent before it answers a submission.
_SUBMIT_TIMEOUT = 30.0


class RayExecutor:
    """Ray's Jobs API at `address`, with Ray's token authentication when a token is given."""

    def __init__(self, address: str, token: str | None, *, timeout: float = 10.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=address, headers=headers, timeout=timeout, trust_env=False
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, submission_id: str, entrypoint: str, env: Mapping[str, str]) -> None:
        """See `Executor.submit`. The driver itself reserves no CPU: its workers do."""
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": {"env_vars": dict(env)},
            "entrypoint_num_cpus": 0,
        }
        answer = self._request("POST", "/api/jobs/", json=body, timeout=_SUBMIT_TIMEOUT)
        # The agent answers 400 to an id that is taken, which the dashboard passes on inside a 500.
        if answer.is_success or (submission_id in answer.text and _TAKEN in answer.text):
            return
        if answer.status_code == httpx.codes.BAD_REQUEST:
            raise SubmissionRefused(_last_line(answer.text))
        raise _unavailable(answer)

    def status(self, submission_id: str) -> Run | None:
        """See `Executor.status`."""
        answer = self._request("GET", f"/api/jobs/{quote(submission_id)}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        job = _json(answer)
        return Run(
            state=RunState(str(job["status"]).lower()),
            message=job.get("message") or "",
            exit_code=job.get("driver_exit_code"),
        )

    def logs(self, submission_id: str) -> str:
        """See `Executor.logs`."""
        answer = self._request("GET", f"/api/jobs/{quote(submission_id)}/logs")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ""
        return str(_json(answer)["logs"])

    def stop(self, submission_id: str) -> None:
        """See `Executor.stop`. Ray sends SIGTERM and, 3 s later, SIGKILL."""
        answer = self._request("POST", f"/api/jobs/{quote(submission_id)}/stop")
        if answer.status_code != httpx.codes.NOT_FOUND:
            _json(answer)

    def cluster(self) -> Cluster:
        """See `Executor.cluster`. Ray's autoscaler refreshes what is used every 5 s."""
        listed = _json(self._request("GET", "/api/v0/nodes", params={"detail": "1"}))
        status = _json(self._request("GET", "/api/cluster_status"))
        report = (status["data"].get("clusterStatus") or {}).get("loadMetricsReport") or {}
        usage = report.get("usageByNode") or {}
        nodes = [node for node in listed["data"]["result"]["result"] if node["state"] == "ALIVE"]
        return Cluster(tuple(_node(node, usage.get(node["node_id"], {})) for node in nodes))

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise ExecutorUnavailable(
                f"Ray does not answer at {self._http.base_url}: {error or type(error).__name__}"
            ) from error
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ExecutorUnavailable(
                f"Ray at {self._http.base_url} refuses the token in RAY_AUTH_TOKEN: {answer.text}"
            )
        return answer


def _node(node: dict[str, Any], usage: dict[str, list[float]]) -> Node:
    total = node["resources_total"]
    return Node(
        id=node["node_id"],
        address=node["node_ip"],
        total_cpus=total.get("CPU", 0.0),
        total_gpus=total.get("GPU", 0.0),
        used_cpus=usage.get("CPU", [0.0])[0],
        used_gpus=usage.get("GPU", [0.0])[0],
    )


def _json(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success:
        raise _unavailable(answer)
    try:
        body = answer.json()
    except ValueError as error:
        raise _unavailable(answer) from error
    assert isinstance(body, dict), f"Ray answered {answer.request.url} with a {type(body)}"
    return body


def _unavailable(answer: httpx.Response) -> ExecutorUnavailable:
    return ExecutorUnavailable(
        f"Ray answered {answer.request.method} {answer.request.url.path} with "
        f"{answer.status_code}: {_last_line(answer.text)}"
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines else "no reason given"
