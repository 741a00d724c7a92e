"""Driver of one training attempt: `python -m workers.driver --run R --job J --attempt N`.

Ray's Jobs API starts it, with DASL_API_URL in the environment and the token of the attempt in the metadata of
Ray's job. The driver gets the job from the API, runs the ranks under Ray Train, and reports a
failure; the ranks report everything else. The exit code is 0 if the attempt succeeded, stopped on request or
was superseded, `UNDELIVERED_EXIT_CODE` if only its end could not be reported, else 1.
"""

import argparse
import json
import logging
import os
import signal
import sys

from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.attempt_token import RAY_JOB_CONFIG, read_attempt_token
from service.client.errors import SPEC_UNREADABLE
from service.client.worker import WorkerClient
from service.object_store import StoreError
from service.protocol import UNDELIVERED_EXIT_CODE, AttemptStart
from workers.artifacts import exists, find_damage
from workers.failures import (
    NON_RETRYABLE,
    controller_failure,
    describe,
    find_cause,
    is_infrastructure_error,
    start_failure,
)
from workers.heartbeats import Heartbeats
from workers.logs import log_to_stderr
from workers.ray_logs import remove_local_logs
from workers.ray_train import Controller
from workers.report_queue import ReportsUndelivered
from workers.settings import BEST_EFFORT_SECONDS, PATIENCE_SECONDS, RAY_SETTINGS
from workers.standby import CONTROLLER_VARIABLES, job_environment

logger = logging.getLogger("workers.driver")


def main() -> int:
    """Run the attempt named on the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Driver of one training attempt.")
    parser.add_argument("--run", required=True, help="id of the run")
    parser.add_argument("--job", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    arguments = parser.parse_args()
    url, token = os.environ["DASL_API_URL"], read_attempt_token()
    log_to_stderr(token, job=arguments.job, attempt=arguments.attempt)
    client = WorkerClient(url, token, arguments.run, patience=PATIENCE_SECONDS)
    try:
        error = start_and_run(client, vars(arguments) | {"url": url, "token": token})
        if error is None:
            return 0
        if isinstance(error, ReportsUndelivered):
            # A later report of a failure would use up a restart.
            logger.error("the run ended, but %s", error)
            return UNDELIVERED_EXIT_CODE
        logger.error("the attempt failed: %s", error)
        client.finish(
            "failed",
            describe(error),
            retryable=not isinstance(error, NON_RETRYABLE),
            repeatable=not is_infrastructure_error(error),
        )
        return 1
    except StaleAttempt as error:
        logger.warning("this attempt was superseded: %s", error)
        return 0
    finally:
        client.close()


def start_and_run(client: WorkerClient, config: dict[str, object]) -> BaseException | None:
    """Get the attempt from the API and run it to its end; return the error on failure, or `None`."""
    try:
        start = client.start()
    except ApiError as error:
        if error.type != SPEC_UNREADABLE:
            raise
        return error
    # Also during a long start of the ranks. If the attempt is superseded, rank 0 gets the same answer.
    seconds = start.heartbeat_seconds
    with Heartbeats(client, seconds, progress={}, patience=seconds):
        try:
            start = with_intact_checkpoint(client, start)
        except (OSError, ValueError) as error:
            return error
        report_ranks_starting(client, start.job_spec().resources.workers)
        return run_ranks(start, config | {"start": start.model_dump(mode="json")})


def report_ranks_starting(client: WorkerClient, workers: int) -> None:
    """Report that the ranks are starting, best effort; a StaleAttempt if the attempt was superseded."""
    message = (
        f"Starting {workers} rank{'s' if workers > 1 else ''}; loading PyTorch takes some seconds"
    )
    logger.info("%s", message)
    try:
        client.event("phase", message, {"phase": "ranks"}, patience=BEST_EFFORT_SECONDS)
    except StaleAttempt:
        raise
    except (ConnectionFailed, ApiError) as error:
        logger.warning("the event was not reported: %s", error)


def with_intact_checkpoint(client: WorkerClient, start: AttemptStart) -> AttemptStart:
    """Return `start` with the newest intact checkpoint, or without a checkpoint.

    The driver reports each damaged checkpoint, and the API answers with the previous one. This happens
    before the ranks start, so it costs neither an attempt nor a restart.

    Raises:
        StoreError: the store cannot be read now.
        ValueError: the start checkpoint of a clone is damaged.
    """
    while (resume := start.resume) is not None:
        damage = find_damage(resume.uri, resume.files)
        if damage is None:
            break
        if not exists(start.dataset.index_uri):
            # An unavailable store, such as an unmounted volume, must not cost a job all its checkpoints.
            raise StoreError(
                f"{start.dataset.index_uri} does not exist: check that the artifact store is mounted"
            )
        logger.warning("checkpoint %s is damaged: %s", resume.checkpoint_id, damage)
        start = client.damaged(resume.checkpoint_id, damage)
        if resume.branch:
            raise ValueError(
                f"the checkpoint {resume.checkpoint_id} that this job was cloned from is damaged: {damage}"
            )
    return start


def run_ranks(start: AttemptStart, config: dict[str, object]) -> BaseException | None:
    """Run all ranks to their end; return the error on failure, or `None`."""
    os.environ.update({k: v for k, v in RAY_SETTINGS.items() if k not in os.environ})
    # Imported late: this takes a second, before which the job should show as running.
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from workers import rank

    drop_job_environment()
    ray.init(
        # Omit the address of the dashboard, which readers of the log cannot reach.
        logging_level=logging.WARNING,
        runtime_env=job_environment(),
    )
    remove_local_logs()
    # Ray's handler writes a stack to the log of a stopped job, which looks like a crash.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    here = ray.get_runtime_context().get_node_id()
    actor = ray.remote(Controller).options(
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        runtime_env={"env_vars": CONTROLLER_VARIABLES},
    )
    # Standby processes lack the variables of the attempt.
    config |= {"log_format": os.environ.get("DASL_LOG_FORMAT", "text"), "driver": here}
    # Held until the end: an actor ends with its last handle.
    controller = actor.remote()
    try:
        failure = ray.get(controller.fit.remote(rank.train_rank, start, config))
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
        return controller_failure(error)
    if failure is None:
        return None
    causes = getattr(failure, "worker_failures", None)
    return start_failure(failure) if causes is None else find_cause(causes) or failure


def drop_job_environment() -> None:
    """Remove the runtime environment that the Jobs API set for the processes of this driver.

    Ray gives a standby process only to a job with an equal environment.
    """
    job = json.loads(os.environ.get(RAY_JOB_CONFIG, "{}"))
    if job.pop("runtime_env", None) is not None:
        os.environ[RAY_JOB_CONFIG] = json.dumps(job)


if __name__ == "__main__":
    sys.exit(main())
