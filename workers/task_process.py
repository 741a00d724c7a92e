"""Process of a run that is not a training, such as an ingest or a preview."""

import argparse
import logging
import os
from collections.abc import Callable

from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.attempt_token import read_attempt_token
from service.client.sync.transport import BUSY
from service.client.worker import WorkerClient
from service.protocol import UNDELIVERED_EXIT_CODE
from workers.logs import log_to_stderr
from workers.settings import PATIENCE_SECONDS

logger = logging.getLogger("workers.task_process")

Task = Callable[[WorkerClient, argparse.Namespace], None]
"""Does the work of a run, and reports its result or a failure that the user can fix."""


def run_task(subject: str, task: Task) -> int:
    """Run a task with the id of its subject from the command line, and return the exit code.

    Args:
        subject: such as `dataset` or `preview`: the name of the option, and a field of each line of the log.
        task: called with the client of the run, and the options `run` and the subject.

    Returns:
        0 if the end was reported or the run was superseded, `UNDELIVERED_EXIT_CODE` if the API did not answer.
    """
    parser = argparse.ArgumentParser(description=f"Run of one {subject}.")
    parser.add_argument("--run", required=True, help="id of the run")
    parser.add_argument(f"--{subject}", required=True)
    options = parser.parse_args()
    url, token = os.environ["DASL_API_URL"], read_attempt_token()
    name = subject.replace("-", "_")
    log_to_stderr(token, **{name: getattr(options, name)})
    client = WorkerClient(url, token, options.run, patience=PATIENCE_SECONDS)
    try:
        task(client, options)
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
