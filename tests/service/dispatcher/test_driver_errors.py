"""Messages of drivers that ended without a report."""

import pytest

from service.dispatcher.driver_errors import driver_ended
from service.dispatcher.executor import Submission, SubmissionState

BY_RAY = [
    "2026-11-26 22:06:51,124\tINFO job_manager.py:581 -- Runtime env is setting up.",
    "Running entrypoint for job mrun_1-2: export DASL_API_URL=http://127.0.0.1:8000; python -m workers.model_run",
]
KILLED = Submission(SubmissionState.FAILED, "Job entrypoint command failed", exit_code=-9)


@pytest.mark.parametrize(
    ("submission", "lines", "message"),
    [
        (KILLED, BY_RAY, "was ended by SIGKILL"),
        (
            KILLED,
            [*BY_RAY, "read 64 of 5236 images", ""],
            "was ended by SIGKILL: read 64 of 5236 images",
        ),
        (KILLED, [], "was ended by SIGKILL: Job entrypoint command failed"),
        (Submission(SubmissionState.SUCCEEDED), BY_RAY, "ended without reporting a result"),
        (Submission(SubmissionState.STOPPED), BY_RAY, "was stopped from outside"),
    ],
)
def test_message_has_the_last_line_of_the_process_not_of_ray(
    submission: Submission, lines: list[str], message: str
) -> None:
    error = driver_ended("model run", submission, lines)
    assert error["message"] == f"The model run {message}"
    assert error["log_tail"] == lines
