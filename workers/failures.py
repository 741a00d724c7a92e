"""Classification of a rank's failure, and its description for the API."""

import errno
import traceback
from collections.abc import Mapping
from typing import TypeGuard

from service.object_store import StoreError
from service.protocol import NO_ROOM, NODE_DIED, STORE_UNAVAILABLE

_LONGEST_TEXT = 20_000

# The numbers in messages of torch and Ray vary, and remain in the traceback. A fixed message lets the service
# recognize a repeated error, which is final.
OUT_OF_MEMORY = (
    "A rank ran out of the memory of {}. Increase train.micro_batches, enable "
    "train.checkpoint_activations, or reduce train.batch_size or backbone.image_size"
)

# Non-retryable: invalid settings, invalid data, numbers out of range.
NON_RETRYABLE = (ValueError, ArithmeticError)


STORAGE_FULL = "storage-full"
"""Error type of an attempt that could not write to its node because of a full disk or an exhausted quota."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

# Ray's message about an actor whose node is lost.
_NODE_HAS_DIED = "because its node has died"


class RankDied(Exception):
    """A rank's process ended without an exception: it was killed, it crashed, or its node was lost."""


class ControllerDied(Exception):
    """The process of Ray Train's controller ended without an exception."""


class NodeDied(RankDied):
    """A rank's process ended with its node."""


class NoRoom(Exception):
    """Ray could not place the ranks in time: other programs use the nodes, or a node was lost."""


# Of `ray.train.v2._internal.exceptions`, compared by name because the module is private.
_NO_ROOM = frozenset({"WorkerGroupStartupTimeoutError", "InsufficientClusterResourcesError"})


def start_failure(error: BaseException) -> BaseException:
    """Return why Ray Train did not start the ranks, or the error itself if it has another cause."""
    cause = getattr(error, "controller_failure", None)
    if type(cause).__name__ not in _NO_ROOM:
        return error
    no_room = NoRoom("Ray had no room for the ranks of the attempt")
    no_room.__cause__ = cause  # Ray's full text, for the traceback.
    return no_room


def find_cause(failures: Mapping[int, Exception]) -> BaseException | None:
    """Find the error that caused the failures of the ranks; `None` if there is none.

    An error of one rank makes the collectives of the other ranks fail, too.
    """
    causes = sorted(failures.items(), key=lambda item: (_is_consequence(item[1]), item[0]))
    if not causes:
        return None
    from ray.exceptions import RayActorError

    rank, failure = causes[0]
    cause = unwrap(failure)
    if isinstance(cause, RayActorError):
        reason = _last_line(cause)
        kind = NodeDied if _NODE_HAS_DIED in str(cause) else RankDied
        died = kind(f"The process of rank {rank} ended: {reason}")
        died.__cause__ = cause  # Ray's full text, for the traceback.
        return died
    return cause


def controller_failure(error: BaseException) -> BaseException:
    """Return why the controller's process of an attempt ended: Ray's error if the node ran out of memory."""
    if _exhausted_device(error) is not None:
        return error
    died = ControllerDied(f"The process of Ray Train's controller ended: {_last_line(error)}")
    died.__cause__ = error
    return died


def _last_line(error: BaseException) -> str:
    """Return the reason, which follows on lines about Ray's actor."""
    return str(error).strip().splitlines()[-1].strip()


_TYPES: dict[type[BaseException], str] = {
    RankDied: "rank-died",
    ControllerDied: "controller-died",
    NodeDied: NODE_DIED,
    NoRoom: NO_ROOM,
    StoreError: STORE_UNAVAILABLE,
}


def unwrap(error: BaseException) -> BaseException:
    """Return the exception of a rank without Ray's wrappers."""
    links = (getattr(error, name, None) for name in ("cause", "health_check_failure", "__cause__"))
    cause = next((link for link in links if link is not None), None)
    return unwrap(cause) if isinstance(cause, BaseException) else error


def describe(error: BaseException) -> dict[str, str]:
    """Return the type, message and traceback of an error for the API."""
    lines = traceback.format_exception(error)
    device = _exhausted_device(error)
    kind = _TYPES.get(type(error), type(error).__name__)
    if _is_full_disk(error) and not isinstance(error, StoreError):
        kind = STORAGE_FULL
    return {
        "type": kind if device is None else "out-of-memory",
        "message": storable(_message(error) if device is None else OUT_OF_MEMORY.format(device)),
        "traceback": storable("".join(lines)[-10_000:]),
    }


def storable(text: str) -> str:
    """Convert a text to a form that the API accepts: UTF-8, no NUL, limited length.

    If the API refused the report of a failure, the attempt would count as unreported and would be retried.
    """
    valid = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return valid[:_LONGEST_TEXT]


def is_infrastructure_error(error: BaseException) -> bool:
    """Whether an error comes from disks, networks, memory or other processes, so that a retry may succeed."""
    return (
        isinstance(error, OSError | MemoryError | RankDied | ControllerDied | NoRoom)
        or type(error).__module__.partition(".")[0] == "ray"
        or _is_consequence(error)
    )


def _exhausted_device(error: BaseException) -> str | None:
    """Return the device that ran out of memory, as part of a sentence; `None` for any other error."""
    # Compared by name, because the driver does not import torch.
    if type(error).__name__ == "OutOfMemoryError":
        return "its GPU" if type(error).__module__.partition(".")[0] == "torch" else "its node"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        return "its node"
    return None


def _is_full_disk(error: BaseException) -> TypeGuard[OSError]:
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def _message(error: BaseException) -> str:
    """Return the message of an error for users; a single line for errors of Ray.

    Tracebacks of other processes and lists of ids in Ray's messages remain in the traceback and the log.
    """
    text = str(error) or type(error).__name__
    if _is_full_disk(error):
        where = f" of {error.filename}" if error.filename else ""
        return (
            f"The disk{where} is full: {text}. Make room there; a retry then resumes the training"
        )
    if type(error).__module__.partition(".")[0] != "ray":
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    has_traceback = any("Traceback (most recent call last)" in x or "ray::" in x for x in lines)
    if has_traceback:
        return lines[-1]
    return next((line for line in lines if not line.endswith(":")), lines[0])  # not a heading


def _is_consequence(error: BaseException) -> bool:
    return "gloo" in str(error).lower() or "nccl" in str(error).lower()
