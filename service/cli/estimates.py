"""Text of the estimates of jobs and experiments: time, memory and disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dasl_core.text import counted
from service.cli.formats import duration, plain, size

if TYPE_CHECKING:
    from service.wire.experiments import ExperimentEstimate

_SOURCES = {
    "earlier_job": "by the speed of {job_id}",
    "computation": "by the network's computation; the first job shows the real speed",
}


def described(estimate: dict[str, Any]) -> str:
    """Return steps, epochs, time and disk in one line."""
    parts = [
        f"{counted(estimate['total_steps'], 'step')} in {counted(estimate['epochs'], 'epoch')}",
        _time(estimate) or "time not known before a job like it has run",
        f"about {size(estimate['checkpoints_bytes'])} of checkpoints",
    ]
    return "; ".join(parts) + "."


def facts_of(estimate: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield what `dasl validate` prints of an estimate."""
    yield "training images", f"{estimate['train_images']:,}"
    yield "held-out images", f"{estimate['held_out_images']:,}"
    epochs = f"{estimate['steps_per_epoch']:,} an epoch, {counted(estimate['epochs'], 'epoch')}"
    yield "total steps", f"{estimate['total_steps']:,} ({epochs})"
    yield "time", _time(estimate) or "not known before a job like it has run"
    yield "backbone parameters", f"{estimate['backbone_parameters']:,}"
    activations = estimate["activation_bytes_per_worker"]
    memory = f"{size(estimate['state_bytes_per_worker'])} for weights, gradients and optimizer"
    if activations is not None:
        memory += f", and roughly {size(activations)} for activations"
    yield "memory per worker", memory
    checkpoints = f"{estimate['checkpoints_kept']} of {size(estimate['checkpoint_bytes'])}"
    yield "checkpoints", f"about {size(estimate['checkpoints_bytes'])} ({checkpoints})"
    yield "image cache", f"at most {size(estimate['image_cache_bytes'])} on each machine"


def together(estimate: ExperimentEstimate) -> str:
    """Return number, time and disk of all jobs of an experiment in one line."""
    if estimate.seconds is None:
        time = "time not known before jobs like them have run"
    else:
        time = f"{span(plain(estimate.seconds))} one after another"
    checkpoints = f"about {size(estimate.checkpoints_bytes)} of checkpoints"
    return f"{counted(estimate.jobs, 'job')}; {time}; {checkpoints}."


def span(seconds: dict[str, Any] | None) -> str:
    """Format the bounds of an expected time: `40 s to 2 min 10 s`."""
    return "-" if seconds is None else f"{duration(seconds['low'])} to {duration(seconds['high'])}"


def _time(estimate: dict[str, Any]) -> str | None:
    seconds = estimate["seconds"]
    if seconds is None:
        return None
    source = _SOURCES[seconds["source"]].format(job_id=seconds["job_id"])
    return f"{span(seconds)} ({source})"
