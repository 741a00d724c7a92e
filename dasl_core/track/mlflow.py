"""MLflow: a run on a server, over its REST API.

Uses httpx rather than the package `mlflow-skinny`, which would install FastAPI, GitPython and the Databricks SDK on
every worker, follows redirects, retries for minutes, and accepts URIs that are not servers.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import httpx
from pydantic import BaseModel

from dasl_core.spec import MLflow
from dasl_core.text import cut
from dasl_core.track.tracker import Ending, Point, TrackedRun, TrackerUnusable

TIMEOUT = httpx.Timeout(5.0, connect=3.0)
REQUEST_SECONDS = 15.0
MAX_ANSWER = 4 << 20
# Delay after which a request without an answer may still be executed. Until then, MLflow may refuse another request
# with the same parameters or metrics.
LOST_SECONDS = 60.0
# MLflow's limits for a request, and for a parameter in older versions.
METRICS_PER_CALL, PARAMS_PER_CALL, LONGEST_PARAM = 1000, 100, 500
# A paused job continues in the same run.
STATUS: dict[Ending, str] = {
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "paused": "SCHEDULED",
}
JOB_TAG, ATTEMPT_TAG, URL_TAG = "dasl.job_id", "dasl.attempt", "dasl.url"
_ID = re.compile(r"[\w.-]{1,100}")


class MLflowServer:
    """Logs to a run shared by all attempts of a job, identified by its tag `dasl.job_id`.

    MLflow cannot replace values, so a resumed attempt skips the steps that the run already has.
    """

    name, key = "MLflow", "mlflow"

    def __init__(self, settings: MLflow, run: TrackedRun) -> None:
        self._settings, self._run = settings, run
        self._client: httpx.Client | None = None
        self._run_id = ""
        self._params: list[dict[str, str]] = []  # not logged yet
        self._last_steps: dict[str, int] = {}
        self._lost_until = 0.0

    def start(self) -> str:
        """Find or create the run of the job; return the address of its page."""
        settings = self._settings
        if not settings.is_allowed(self._run.hosts):
            raise TrackerUnusable(
                f"track.mlflow.tracking_uri: workers may not contact {settings.address}. "
                "Ask the operator to add it to DASL_TRACKING_HOSTS."
            )
        if self._client is None:
            self._client = _client(settings.tracking_uri)
        experiment = self._experiment()
        run = self._find(experiment) or self._create(experiment)
        self._run_id = _identifier(run["info"].get("run_id"))
        data = run.get("data") or {}
        for metric in data.get("metrics") or ():
            self._last_steps[str(metric["key"])] = int(metric["step"])
        if not data.get("params"):
            self._params = [
                {"key": name, "value": cut(value, LONGEST_PARAM)}
                for name, value in flatten(self._run.spec)
            ]
        return f"{settings.tracking_uri}/#/experiments/{experiment}/runs/{self._run_id}"

    def log(self, points: Sequence[Point]) -> None:
        """Log the parameters, if not done yet, and the metrics of new steps."""
        while self._params:
            self._log(params=self._params[:PARAMS_PER_CALL])
            del self._params[:PARAMS_PER_CALL]
        metrics = self._metrics(points)
        while batch := list(islice(metrics, METRICS_PER_CALL)):
            self._log(metrics=batch)
            for metric in batch:
                self._last_steps[metric["key"]] = metric["step"]

    def publish(self) -> None:
        """Do nothing, since the server has all points."""

    def finish(self, ending: Ending) -> None:
        """Set the status of the run, unless a newer attempt continues it."""
        if ending == "superseded":
            return
        self.log([])  # the parameters of a run without metrics
        status = STATUS[ending]
        ended = {} if ending == "paused" else {"end_time": _milliseconds(time.time())}
        self._call("POST", "runs/update", {"run_id": self._run_id, "status": status, **ended})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _experiment(self) -> str:
        name = self._settings.experiment
        answer = self._call(
            "GET", "experiments/get-by-name", {"experiment_name": name}, missing=True
        )
        if answer is None:
            created = self._call("POST", "experiments/create", {"name": name}, missing=True)
            if created is not None:
                return _identifier(created.get("experiment_id"))
            # Another run has just created it.
            answer = self._call("GET", "experiments/get-by-name", {"experiment_name": name})
        return _identifier((answer or {}).get("experiment", {}).get("experiment_id"))

    def _find(self, experiment: str) -> dict[str, Any] | None:
        query = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{JOB_TAG}` = '{self._run.id}'",
            "max_results": 1,
        }
        runs = (self._call("POST", "runs/search", query) or {}).get("runs")
        if not runs:
            return None
        run: dict[str, Any] = runs[0]
        run_id = _identifier(run["info"].get("run_id"))
        self._call("POST", "runs/update", {"run_id": run_id, "status": "RUNNING"})
        tag = {"run_id": run_id, "key": ATTEMPT_TAG, "value": str(self._run.attempt)}
        self._call("POST", "runs/set-tag", tag)
        return run

    def _create(self, experiment: str) -> dict[str, Any]:
        tags = {
            JOB_TAG: self._run.id,
            ATTEMPT_TAG: str(self._run.attempt),
            URL_TAG: self._run.url or "",
            "mlflow.source.name": "dasl",
        }
        request = {
            "experiment_id": experiment,
            "run_name": self._settings.run_name or self._run.spec.name,
            "start_time": _milliseconds(time.time()),
            "tags": [{"key": key, "value": value} for key, value in tags.items() if value],
        }
        run: dict[str, Any] = (self._call("POST", "runs/create", request) or {})["run"]
        return run

    def _metrics(self, points: Sequence[Point]) -> Iterator[dict[str, Any]]:
        for point in points:
            for name, value in point.values.items():
                if point.step > self._last_steps.get(name, -1):
                    yield {
                        "key": name,
                        "value": value,
                        "timestamp": _milliseconds(point.time),
                        "step": point.step,
                    }

    def _log(self, **entries: list[Any]) -> None:
        self._call("POST", "runs/log-batch", {"run_id": self._run_id, **entries})

    def _call(
        self, method: str, path: str, content: dict[str, Any], *, missing: bool = False
    ) -> dict[str, Any] | None:
        """Call the server.

        Args:
            missing: whether to return None if something does not exist, or already exists.

        Raises:
            OSError: the server cannot be reached now, or has a problem.
            TrackerUnusable: it refuses the request, or is not an MLflow server.
        """
        assert self._client is not None, "started"
        of_request: dict[str, Any] = {"params": content} if method == "GET" else {"json": content}
        try:
            with self._client.stream(method, path, **of_request) as response:
                answer = self._read(response)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._lost_until = time.monotonic() + LOST_SECONDS
            reason = str(error) or type(error).__name__
            raise ConnectionError(f"{self._settings.address}: {reason}") from error
        status = response.status_code
        if status == 429 or status >= 500:
            raise ConnectionError(f"{self._settings.address} answered {status}")
        try:
            parsed = json.loads(answer)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            parsed = {}
            if status == 200:
                raise TrackerUnusable(f"{self._settings.address} does not answer as MLflow does")
        if status == 200:
            return parsed
        kinds = ("RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS")
        if missing and parsed.get("error_code") in kinds:
            return None
        if status == 400 and time.monotonic() < self._lost_until:
            raise ConnectionError(self._refusal(status, parsed))
        raise TrackerUnusable(self._refusal(status, parsed))

    def _read(self, response: httpx.Response) -> bytes:
        deadline = time.monotonic() + REQUEST_SECONDS
        content = b""
        for chunk in response.iter_raw():
            content += chunk
            if len(content) > MAX_ANSWER:
                raise TrackerUnusable(f"{self._settings.address} does not answer as MLflow does")
            if time.monotonic() > deadline:
                raise ConnectionError(f"{self._settings.address}: the answer takes too long")
        return content

    def _refusal(self, status: int, answer: Mapping[str, Any]) -> str:
        message = answer.get("message")
        reason = f": {cut(message, 200)}" if isinstance(message, str) else ""
        remedy = (
            ". Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, where ranks run."
            if status in (401, 403)
            else ""
        )
        return f"{self._settings.address} answered {status}{reason}{remedy}"


def flatten(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting with its dotted name; lists and mappings as JSON."""
    for name, value in model:
        if isinstance(value, BaseModel):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            plain = model.model_dump(mode="json", include={name})[name]
            yield prefix + name, plain if isinstance(plain, str) else json.dumps(plain)


def _client(uri: str) -> httpx.Client:
    """Create a client with the credentials in MLflow's environment variables."""
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    # Not compressed, so that the length of a response can be limited as it arrives.
    headers = {"Accept-Encoding": "identity"}
    return httpx.Client(
        base_url=f"{uri}/api/2.0/mlflow/",
        auth=httpx.BasicAuth(user, password) if user and password else None,
        headers=headers | ({"Authorization": f"Bearer {token}"} if token else {}),
        timeout=TIMEOUT,
        follow_redirects=False,  # a redirect could lead to a forbidden host
    )


def _identifier(value: object) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise TrackerUnusable("the server does not answer as MLflow does")
    return value


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
