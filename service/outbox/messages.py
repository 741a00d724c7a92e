"""Messages of webhooks: types, content and formats."""

import json
from datetime import datetime
from typing import Any, Literal, get_args

from dasl_core.headlines import ACCURACIES, format_metric
from dasl_core.text import cut
from service.db.models import Dataset, Job, ModelRun, Task
from service.protocol import ModelRunKind
from service.states import JobStatus, TaskState

VERSION = 1
"""Version of the payload. Fields may be added without a new version."""
ALL = "*"
"""Type in the filter of a webhook that matches every event, including types of later versions."""
TEST = "webhook.test"
DISABLED = "webhook.disabled"
Format = Literal["standard", "slack"]

# Statuses of some duration.
_JOB_STATUSES = [
    each for each in JobStatus if each not in (JobStatus.PAUSING, JobStatus.CANCELLING)
]
JOB_EVENTS = ("checkpoint", "collapse", "evaluation", "verdict")
"""Types of events of a job, other than changes of status, that webhooks can be notified of."""
TYPES = (
    *(f"job.{each}" for each in (*_JOB_STATUSES, *JOB_EVENTS)),
    *("dataset.ready", "dataset.failed"),
    *(
        f"{noun}.{state}"
        for noun in ("preview", "preparation", *get_args(ModelRunKind))
        for state in (TaskState.SUCCEEDED, TaskState.FAILED)
    ),
    DISABLED,
)
"""Types of messages, for the filter of a webhook."""
DEFAULT_TYPES = ("job.succeeded", "job.failed", "job.cancelled", "job.paused")
"""Types after which the job no longer runs."""

_LONGEST_MESSAGE = 500
# Metrics of a job's progress.
_METRICS = ("epoch", "step", "loss", *(each.field for each in ACCURACIES))


def job_type(job: Job, event: str) -> str | None:
    """Return the type of the message about an event of a job; `None` if there is none."""
    kind = f"job.{job.status if event == 'status' else event}"
    return kind if kind in TYPES and event in ("status", *JOB_EVENTS) else None


def job_message(job: Job, message: str) -> dict[str, Any]:
    """Return the data of a message about a job."""
    progress, error = job.progress or {}, job.error or {}
    metrics = {name: progress[name] for name in _METRICS if progress.get(name) is not None}
    return {
        "id": job.id,
        "name": job.name,
        "status": job.status,
        "message": cut(message, _LONGEST_MESSAGE),
        "error_type": error.get("type"),
        "metrics": metrics,
        "verdict": (job.verdict or {}).get("verdict"),
        "tags": job.tags,
        "url": f"/#/jobs/{job.id}",
    }


def dataset_message(dataset: Dataset, state: str, error: dict[str, Any] | None) -> dict[str, Any]:
    """Return the data of a message about the end of an ingest."""
    ended = _ended("Data set", state, error)
    return {"id": dataset.id, "name": dataset.name, **ended, "url": f"/#/datasets/{dataset.id}"}


def task_message(task: Task, noun: str, state: str, error: dict[str, Any] | None) -> dict[str, Any]:
    """Return the data of a message about the end of a task."""
    # An export has no data set.
    url = "/#/jobs" if task.dataset_id is None else f"/#/datasets/{task.dataset_id}"
    of_checkpoint = {"checkpoint_id": task.checkpoint_id} if isinstance(task, ModelRun) else {}
    ended = _ended(noun.capitalize(), state, error)
    return {"id": task.id, "dataset_id": task.dataset_id, **of_checkpoint, **ended, "url": url}


def _ended(noun: str, state: str, error: dict[str, Any] | None) -> dict[str, Any]:
    error = error or {}
    message = str(error.get("message") or f"{noun} {state}")
    return {
        "status": state,
        "message": cut(message, _LONGEST_MESSAGE),
        "error_type": error.get("type"),
    }


def webhook_message(webhook_id: str, name: str, message: str) -> dict[str, Any]:
    """Return the data of a message about a webhook."""
    return {"id": webhook_id, "name": name, "message": message, "url": "/#/jobs"}


def stored(type: str, at: datetime, data: dict[str, Any]) -> dict[str, Any]:
    """Build the stored payload of a message, with a link relative to the server."""
    timestamp = at.isoformat().replace("+00:00", "Z")
    return {"type": type, "version": VERSION, "timestamp": timestamp, "data": data}


def with_link(message: dict[str, Any], public_url: str) -> dict[str, Any]:
    """Return the payload of a message with an absolute link."""
    data = message["data"]
    return {**message, "data": {**data, "url": f"{public_url}{data['url']}"}}


def body(message: dict[str, Any], format: str, public_url: str) -> bytes:
    """Return the body of a request.

    Args:
        format: a `Format`; unknown formats of a newer version count as "standard".
    """
    payload = with_link(message, public_url)
    content = {"text": _text(payload)} if format == "slack" else payload
    return json.dumps(content, separators=(",", ":")).encode()


def _text(payload: dict[str, Any]) -> str:
    """Format a message as a line of text with a link in Slack's syntax."""
    data = payload["data"]
    metrics = data.get("metrics") or {}
    shown = [
        f"{each.label} {format_metric(each.metric, metrics[each.field])}"
        for each in ACCURACIES
        if each.field in metrics
    ]
    if verdict := data.get("verdict"):
        shown.append(f"verdict: {verdict.replace('_', ' ')}")
    figures = f" ({', '.join(shown)})" if shown else ""
    name = data.get("name") or data["id"]
    return f"<{data['url']}|{_escaped(name)}>: {_escaped(data['message'])}{figures}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
