"""Errors of drivers that ended without a report."""

import signal
from typing import Any

from service.dispatcher.executor import Submission, SubmissionState

UNDELIVERED = "reports-undelivered"
"""Error type of a driver that could not reach the API."""
# A crash of the program has other signals, such as SIGSEGV.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)


def driver_ended(process: str, submission: Submission, lines: list[str]) -> dict[str, Any]:
    """Return the error of a driver; `process` names it in the message, `lines` are its last ones."""
    return {
        "type": "driver-ended",
        "message": _message(process, submission, lines),
        "log_tail": lines,
    }


def undelivered(message: str, lines: list[str]) -> dict[str, Any]:
    """Return the error of a driver that exited with `UNDELIVERED_EXIT_CODE`."""
    return {"type": UNDELIVERED, "message": message, "log_tail": lines}


def was_killed(submission: Submission) -> bool:
    """Whether a driver was ended from outside: by a signal, a stop, or the end of its node.

    The node may have run out of memory, so the job may still be the cause.
    """
    if submission.state == SubmissionState.STOPPED:
        return True
    if submission.state != SubmissionState.FAILED:
        return False
    return submission.exit_code is None or _signal(submission.exit_code) in _FROM_OUTSIDE


def _signal(code: int) -> int:
    """Return the number of the signal that ended a process, as Python or a shell states it."""
    return -code if code < 0 else code - 128


def _message(process: str, submission: Submission, lines: list[str]) -> str:
    if submission.state == SubmissionState.SUCCEEDED:
        return f"The {process} ended without reporting a result"
    if submission.state == SubmissionState.STOPPED:
        return f"The {process} was stopped from outside"
    how = "ended"
    code = submission.exit_code
    if code is not None:
        try:
            how = f"was ended by {signal.Signals(_signal(code)).name}"
        except ValueError:
            how = f"ended with exit code {code}"
    output = [line.strip() for line in lines if line.strip() and not _is_from_ray(line)]
    last = output[-1] if output else "" if lines else submission.message
    last = last.replace("\0", "\ufffd")
    return f"The {process} {how}: {last}" if last else f"The {process} {how}"


def _is_from_ray(line: str) -> bool:
    """Whether Ray wrote a line before the process started; such lines do not explain its end."""
    return line.startswith("Running entrypoint for job ") or " job_manager.py:" in line
