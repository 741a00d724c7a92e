"""Messages of drivers that ended without a report."""

from __future__ import annotations

from service.dispatcher.driver_errors import driver_ended
from service.dispatcher.executor import Submission, SubmissionState

BY_RAY = [
    "2026-11-26 22:06:51,124\tINFO job_manager.py:581 -- Runtime env is setting up.",
    "Running entrypoint for job mrun_1-2: export DASL_API_URL=http://127.0.0.1:8000; python -m workers.model_run",
]
KILLED = Submission(SubmissionState.FAILED, "Job entrypoint command failed", exit_code=-9)


def test_message_leaves_out_the_lines_of_ray() -> None:
    error = driver_ended("model run", KILLED, BY_RAY)
    assert error["message"] == "The model run was ended by SIGKILL"
    assert error["log_tail"] == BY_RAY


def test_message_ends_with_the_last_line_of_the_process() -> None:
    error = driver_ended("model run", KILLED, [*BY_RAY, "read 64 of 5236 images", ""])
    assert error["message"] == "The model run was ended by SIGKILL: read 64 of 5236 images"


def test_message_of_a_process_without_a_log_is_that_of_ray() -> None:
    error = driver_ended("model run", KILLED, [])
    assert error["message"] == "The model run was ended by SIGKILL: Job entrypoint command failed"
