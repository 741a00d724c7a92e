"""Classify what made a rank fail, and describe it as the API stores it."""

import traceback
from collections.abc import Mapping

_LONGEST_TEXT = 20_000

# Without the numbers that torch and Ray report, which are in the traceback: they differ each time, and an
# error that repeats without a step in between is final.
OUT_OF_MEMORY = (
    "A rank ran out of the memory of {}. More train.micro_batches, train.checkpoint_activations, a smaller "
    "train.batch_size or a smaller backbone.image_size need less"
)

# Another attempt would fail in the same way: bad settings, bad data, numbers out of range.
NON_RETRYABLE = (ValueError, ArithmeticError)


class RankDied(Exception):
    """The process of a rank ended without raising: it was killed, crashed, or lost its node."""


def cause_of(failures: Mapping[int, Exception]) -> BaseException | None:
    """Return the failure that caused the others, by rank; `None` if there is none.

    An error of one rank makes the collectives of its peers fail.
    """
    causes = sorted(failures.items(), key=lambda item: (_is_consequence(item[1]), item[0]))
    if not causes:
        return None
    from ray.exceptions import RayActorError

    rank, failure = causes[0]
    cause = unwrap(failure)
    if isinstance(cause, RayActorError):
        # Ray's last line is the reason; those before it name its actor.
        reason = str(cause).strip().splitlines()[-1].strip()
        died = RankDied(f"The process of rank {rank} ended: {reason}")
        died.__cause__ = cause  # All that Ray says, for the traceback.
        return died
    return cause


def unwrap(error: BaseException) -> BaseException:
    """Return the exception that a rank raised, out of Ray's wrappers."""
    links = (getattr(error, name, None) for name in ("cause", "health_check_failure", "__cause__"))
    cause = next((each for each in links if each is not None), None)
    return unwrap(cause) if isinstance(cause, BaseException) else error


def describe(error: BaseException) -> dict[str, str]:
    """Return an error as the API stores it: type, message, traceback."""
    lines = traceback.format_exception(error)
    short_of = _memory_short_of(error)
    kind = "rank-died" if isinstance(error, RankDied) else type(error).__name__
    return {
        "type": kind if short_of is None else "out-of-memory",
        "message": storable(
            _message(error) if short_of is None else OUT_OF_MEMORY.format(short_of)
        ),
        "traceback": storable("".join(lines)[-10_000:]),
    }


def storable(text: str) -> str:
    """Return a text as the API accepts it: UTF-8, no NUL, not too long.

    If the API refused the report of a failure, the driver would seem to have ended without one, and the
    attempt would be repeated.
    """
    sound = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return sound[:_LONGEST_TEXT]


def is_infrastructure_error(error: BaseException) -> bool:
    """Whether an error comes from disks, networks, memory or other processes, and may not repeat."""
    return (
        isinstance(error, OSError | MemoryError | RankDied)
        or type(error).__module__.partition(".")[0] == "ray"
        or _is_consequence(error)
    )


def _memory_short_of(error: BaseException) -> str | None:
    """Whose memory was too small; `None`: it is another error."""
    # By name: the driver has no other use for torch.
    if type(error).__name__ == "OutOfMemoryError":
        return "its GPU" if type(error).__module__.partition(".")[0] == "torch" else "its node"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        return "its node"
    return None


def _message(error: BaseException) -> str:
    """Return one line for people.

    Ray puts tracebacks of other processes, or a list of ids, into the text of its errors; these are in
    the traceback and the log.
    """
    text = str(error) or type(error).__name__
    if type(error).__module__.partition(".")[0] != "ray":
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    quoted = any("Traceback (most recent call last)" in x or "ray::" in x for x in lines)
    if quoted:
        return lines[-1]
    return next((line for line in lines if not line.endswith(":")), lines[0])  # not a heading


def _is_consequence(error: BaseException) -> bool:
    return "gloo" in str(error).lower() or "nccl" in str(error).lower()
