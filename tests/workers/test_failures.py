"""The driver's classification of failures of ranks."""

import errno
import os
import threading
from pathlib import Path
from typing import cast

import pytest
import torch
from ray import cloudpickle
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayTaskError
from ray.train.v2._internal.exceptions import (
    InsufficientClusterResourcesError,
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2.api.exceptions import ControllerError

from dasl_core.train.checkpointing import CheckpointFailed
from dasl_core.train.outcomes import DivergedError
from service.client import ConnectionFailed
from service.client.worker import WorkerClient
from service.object_store import StoreError
from service.protocol import NO_ROOM, STORE_UNAVAILABLE, ErrorReport
from workers.failures import (
    NON_RETRYABLE,
    RankDied,
    controller_failure,
    describe,
    find_cause,
    is_infrastructure_error,
    start_failure,
    unwrap,
)
from workers.heartbeats import Heartbeats


@pytest.mark.parametrize(
    ("error", "non_retryable", "infrastructure"),
    [
        (ValueError("4 of 30 images can no longer be read"), True, False),
        (DivergedError("the loss is NaN"), True, False),
        (OverflowError("cannot convert float infinity to integer"), True, False),
        (RuntimeError("value cannot be converted to type float without overflow"), False, False),
        (RuntimeError("Gloo connection closed by peer"), False, True),
        (OSError(28, "No space left on device"), False, True),
        (TimeoutError("reports did not arrive"), False, True),
        (ActorDiedError(), False, True),
        # Final, because the rank has its GPU to itself; other processes share a node's memory.
        (torch.OutOfMemoryError("CUDA out of memory."), False, False),
        (OutOfMemoryError("killed"), False, True),
        (MemoryError(), False, True),
        (controller_failure(ActorDiedError()), False, True),
        (controller_failure(OutOfMemoryError("killed")), False, True),
        # Ranks that cannot be started are an infrastructure error for any wrapped error.
        (ControllerError(RuntimeError("no device")), False, True),
    ],
)
def test_errors_are_classified_as_retryable(
    error: Exception, non_retryable: bool, infrastructure: bool
) -> None:
    assert isinstance(error, NON_RETRYABLE) == non_retryable
    assert is_infrastructure_error(error) == infrastructure


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (WorkerGroupStartupTimeoutError(4), NO_ROOM),
        (InsufficientClusterResourcesError("4 GPUs"), NO_ROOM),
        (WorkerGroupStartupFailedError("died"), "ControllerError"),
    ],
)
def test_ranks_without_room_are_recognized(failure: Exception, kind: str) -> None:
    error = start_failure(ControllerError(failure))
    described = describe(error)
    assert described["type"] == kind
    assert str(failure) in described["traceback"]
    assert is_infrastructure_error(error)


REMOTE = """\x1b[36mray::_RayTrainWorker.__init__()\x1b[39m (pid=7, ip=10.0.0.1)
  File "worker.py", line 3, in __init__
    raise RuntimeError("no device")
RuntimeError: no device"""


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("two\nlines"), "ValueError", "two\nlines"),
        (
            ActorDiedError(),
            "ActorDiedError",
            "The actor died unexpectedly before finishing this task.",
        ),
        (
            ControllerError(WorkerGroupStartupFailedError(f"not started:\n{REMOTE}")),
            "ControllerError",
            "RuntimeError: no device",
        ),
        (
            ControllerError(WorkerGroupStartupFailedError("not in time\nSet this or that.")),
            "ControllerError",
            "not in time",
        ),
        (RayTaskError("start", REMOTE, RuntimeError("no device")), "RuntimeError", "no device"),
    ],
)
def test_described_error_has_type_and_message(error: Exception, kind: str, message: str) -> None:
    error_report = describe(unwrap(error))
    assert (error_report["type"], error_report["message"]) == (kind, message)


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), "its GPU"),
        (OutOfMemoryError("Task was killed due to the node running low on memory."), "its node"),
        (MemoryError("Unable to allocate 4. TiB"), "its node"),
    ],
)
def test_out_of_memory_message_names_remedies(error: Exception, whose: str) -> None:
    error_report = describe(error)
    assert error_report["type"] == "out-of-memory"
    assert f"the memory of {whose}." in error_report["message"]
    assert "train.micro_batches" in error_report["message"]
    assert str(error) in error_report["traceback"], "the figures are there"


def test_described_error_is_a_valid_report() -> None:
    """A refused report would look like a driver without one, and the attempt would be retried in vain."""
    error_report = describe(ValueError("no weights at " + "/a" * 30_000 + "\0\udcff"))
    report = ErrorReport.model_validate(error_report)
    assert report.type == "ValueError"
    assert report.message.startswith("no weights at /a/a")
    error_report = describe(ValueError("a\0b\udcffc"))
    assert error_report["message"] == "a\ufffdb?c"
    assert not {"\0", "\udcff"} & set(error_report["traceback"])


def test_killed_rank_is_reported_with_its_number() -> None:
    text = "The actor died unexpectedly.\n\tpid: 7\nThe actor is dead because its worker has died."
    died = WorkerHealthCheckFailedError(
        "A worker health check failed.", RayActorError(error_msg=text)
    )
    peer = RuntimeError("Gloo connection closed by peer")
    cause = find_cause({0: peer, 1: died})
    assert isinstance(cause, RankDied)
    error_report = describe(cause)
    assert error_report["type"] == "rank-died"
    assert error_report["message"] == (
        "The process of rank 1 ended: The actor is dead because its worker has died."
    )
    assert "pid: 7" in error_report["traceback"]
    assert is_infrastructure_error(cause)
    assert not isinstance(cause, NON_RETRYABLE)
    raised = ValueError("no images")
    assert find_cause({0: peer, 1: RayTaskError("train", REMOTE, raised)}) is raised
    assert find_cause({}) is None


def test_rank_on_a_lost_node_is_reported_as_such() -> None:
    """The text is that of Ray's head for an actor on a node that is gone."""
    context = ActorDiedErrorContext(
        error_message="The actor died because its node has died. Node Id: 0f\n"
        "\tthe actor's node was terminated unexpectedly: health check failed",
        actor_id=b"\0" * 16,
    )
    cause = find_cause({0: ActorDiedError(context)})
    assert cause is not None
    report = describe(cause)
    assert report["type"] == "node-died"
    assert report["message"].endswith("unexpectedly: health check failed")


def test_cpu_allocator_error_counts_as_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    assert describe(raised.value)["type"] == "out-of-memory"
    assert describe(raised.value) | {"traceback": ""} == describe(MemoryError()) | {"traceback": ""}


class SlowApi:
    """API that accepts a heartbeat and fails to answer it when the test triggers that."""

    def __init__(self) -> None:
        self.asked, self.fail, self.failed = (threading.Event() for _ in range(3))

    def heartbeat(self, progress: object, *, patience: float) -> str:
        self.asked.set()
        self.fail.wait(60)
        self.failed.set()
        raise ConnectionFailed("http://api", "Bad file descriptor")


@pytest.mark.parametrize("over", [True, False])
def test_heartbeat_failure_after_the_end_is_not_logged(
    over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    api = SlowApi()
    pulse = Heartbeats(cast(WorkerClient, api), 0.01)
    with pulse:
        assert api.asked.wait(60)
        if not over:
            api.fail.set()
            assert api.failed.wait(60)
            api.asked.clear()
            assert api.asked.wait(60), "and goes on"
    api.fail.set()
    pulse._thread.join(60)
    assert bool(caplog.records) == (not over)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_has_a_type_of_its_own_and_names_the_file(number: int) -> None:
    error = describe(OSError(number, os.strerror(number), "/artifacts/jobs/x"))
    assert error["type"] == "storage-full"
    assert "The disk of /artifacts/jobs/x is full" in error["message"]
    assert "Make room there" in error["message"]
    assert describe(OSError(errno.EIO, "I/O error"))["type"] == "OSError"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_error_of_the_store_is_recognized_behind_a_failed_checkpoint(number: int) -> None:
    """Ray pickles the errors of ranks, which drops `__cause__`."""
    failed = CheckpointFailed("The checkpoint of step 3 could not be written")
    failed.cause = StoreError(number, os.strerror(number), "s3://bucket/jobs/x")
    arrived = cloudpickle.loads(cloudpickle.dumps(failed))
    error = find_cause({0: RayTaskError("train", REMOTE, arrived), 1: RuntimeError("Gloo timeout")})
    assert error is not None
    described = describe(error)
    assert described["type"] == STORE_UNAVAILABLE
    assert "s3://bucket/jobs/x" in described["message"]
    assert ("Make room there" in described["message"]) == (number == errno.ENOSPC)
    assert is_infrastructure_error(error)
    assert not isinstance(error, NON_RETRYABLE)


def test_marker_of_ray_reports_a_store_that_is_away(tmp_path: Path) -> None:
    """Ray's controller would die of it, without a cause that the driver could report."""
    from workers.ray_train import run_config

    config = run_config(f"file://{tmp_path}/attempt")
    assert "storage_context" in vars(cloudpickle.loads(cloudpickle.dumps(config)))
    (tmp_path / "away").touch()
    with pytest.raises(StoreError):
        run_config(f"file://{tmp_path}/away/attempt")
