"""How the driver of an attempt judges what made its ranks fail."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2.api.exceptions import ControllerError

from dasl_core.train.engine import DivergedError
from workers.run import HOPELESS, _unwrap, describe, of_surroundings


@pytest.mark.parametrize(
    ("error", "hopeless", "surroundings"),
    [
        (ValueError("4 of 30 images can no longer be read"), True, False),
        (DivergedError("the loss is NaN"), True, False),
        (OverflowError("cannot convert float infinity to integer"), True, False),
        (RuntimeError("value cannot be converted to type float without overflow"), False, False),
        (RuntimeError("Gloo connection closed by peer"), False, True),
        (OSError(28, "No space left on device"), False, True),
        (TimeoutError("reports did not arrive"), False, True),
        (ActorDiedError(), False, True),
        # Ranks that cannot be started: Ray's affair, whatever it wraps.
        (ControllerError(RuntimeError("no device")), False, True),
    ],
)
def test_what_may_be_met_again(error: Exception, hopeless: bool, surroundings: bool) -> None:
    assert isinstance(error, HOPELESS) == hopeless
    assert of_surroundings(error) == surroundings


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
        (
            RayTaskError("start", REMOTE, RuntimeError("no device")),
            "RuntimeError",
            "no device",
        ),
    ],
)
def test_what_people_are_told_is_a_line(error: Exception, kind: str, message: str) -> None:
    told = describe(_unwrap(error))
    assert (told["type"], told["message"]) == (kind, message)
