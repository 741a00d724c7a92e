"""Process of a run that is not a training, such as an ingest or a preview."""

import argparse
import logging
import os
from collections.abc import Callable

from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.attempt_token import read_attempt_token
from service.client.sync.transport import BUSY
from service.client.worker import WorkerClient
from service.protocol import UNDELIVERED_EXIT_CODE, TaskReport
from workers.logs import log_to_stderr
from workers.settings import PATIENCE_SECONDS

logger = logging.getLogger("workers.task_process")

Task = Callable[[WorkerClient, argparse.Namespace], None]
"""Does the work of a run, and reports its result or a failure that the user can fix."""


EXCEEDED = (
    "The run took more than {} GB of memory and was ended, so that others on its machine go on. Use smaller files, or "
    "set DASL_TASK_MEMORY_GB where Ray is started"
)


def run_task(subject: str, report: type[TaskReport], task: Task) -> int:
    """Run a task with the id of its subject from the command line, and return the exit code.

    With the option `--exceeded GB` it only reports that the task took more memory (`workers.memory_limit`).

    Args:
        subject: such as `dataset` or `preview`: the name of the option, and a field of each line of the log.
        report: the report of its end.
        task: called with the client of the run, and the options `run` and the subject.

    Returns:
        0 if the end was reported or the run was superseded, `UNDELIVERED_EXIT_CODE` if the API did not answer.
    """
    parser = argparse.ArgumentParser(description=f"Run of one {subject}.")
    parser.add_argument("--run", required=True, help="id of the run")
    parser.add_argument(f"--{subject}", required=True)
    parser.add_argument("--exceeded", help=argparse.SUPPRESS)
    options = parser.parse_args()
    url, token = os.environ["DASL_API_URL"], read_attempt_token()
    name = subject.replace("-", "_")
    log_to_stderr(token, **{name: getattr(options, name)})
    client = WorkerClient(url, token, options.run, patience=PATIENCE_SECONDS)
    try:
        if options.exceeded is None:
            task(client, options)
        else:
            client.task_failed(report, "out-of-memory", EXCEEDED.format(options.exceeded))
    except StaleAttempt as error:
        logger.warning("this run was superseded: %s", error)
    except (ConnectionFailed, ApiError) as error:
        if isinstance(error, ApiError) and error.status not in BUSY:
            raise
        logger.error("the end of this run could not be reported: %s", error)
        return UNDELIVERED_EXIT_CODE
    finally:
        client.close()
    return 0
