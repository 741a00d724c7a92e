"""The driver of one attempt: `python -m workers.run --job J --attempt N`.

Ray's Jobs API starts it; the environment holds DASL_API_URL, and the metadata of Ray's job the attempt's
own token. It learns what to do, runs the ranks under Ray Train, and reports a failure. The ranks report
all else themselves. Exit code 0: the end of the attempt was reported, or is no longer wanted.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping

from service.client import ApiError, ConnectionFailed, StaleAttempt
from service.client.attempt_token import own_token
from service.client.worker import AttemptStart, WorkerClient
from workers.artifacts import exists, find_damage
from workers.logs import log_to_stderr
from workers.settings import PATIENCE_SECONDS

log = logging.getLogger("workers.run")

RAY_SETTINGS = {
    # Ray Train's own defaults wait ten minutes for a dead worker and for ever for a stuck collective.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "600",
    # How soon the end of the ranks is seen; the next job waits for it. The default is 2 s.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Each of these costs start-up time, and we use none: wraps print, exports metrics of its own,
    # and one more process with all of torch that looks for nodes about to go.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # The log is read in files and over the API, where colours are noise.
    "RAY_COLOR_PREFIX": "0",
    # Ranks say much the same. Left to itself Ray drops all but one of lines that differ in nothing
    # but numbers, as those of two steps do.
    "RAY_DEDUP_LOGS": "0",
}


# What people need not know is not waited for.
ANNOUNCE_SECONDS = 10.0
_LONGEST_TEXT = 20_000

# Without the figures that torch and Ray tell, which are in the traceback: they differ each time, and the
# same error again, without a step more, is final.
OUT_OF_MEMORY = (
    "A rank ran out of the memory of {}. More train.micro_batches, train.checkpoint_activations, a smaller "
    "train.batch_size or a smaller backbone.image_size need less"
)

# What was given cannot be run, whoever tries: settings, data, numbers beyond any range.
HOPELESS = (ValueError, ArithmeticError)


def main() -> int:
    """Run the attempt that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(description="Driver of one training attempt.")
    parser.add_argument("--job", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    arguments = parser.parse_args()
    url, token = os.environ["DASL_API_URL"], own_token()
    log_to_stderr(token, job=arguments.job, attempt=arguments.attempt)
    client = WorkerClient(url, token, arguments.job, arguments.attempt, patience=PATIENCE_SECONDS)
    try:
        start = client.start()
        config: dict[str, object] = {
            "job": arguments.job,
            "attempt": arguments.attempt,
            "url": url,
            "token": token,
        }
        with Pulse(client, start.heartbeat_seconds):
            error = run(client, start, config)
        if error is None:
            return 0
        log.error("the attempt failed: %s", error)
        client.finish(
            "failed",
            describe(error),
            retryable=not isinstance(error, HOPELESS),
            repeatable=not of_surroundings(error),
        )
        return 1
    except StaleAttempt as error:
        log.warning("this attempt is no longer wanted: %s", error)
        return 0
    finally:
        client.close()


class Pulse:
    """Heartbeats of the driver, from its start to its end: ranks may take long to come up."""

    def __init__(self, client: WorkerClient, seconds: float) -> None:
        self._client, self._seconds = client, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(timeout=self._seconds)

    def _beat(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self._client.heartbeat(patience=self._seconds)
            except StaleAttempt:
                return  # rank 0 hears the same and stops the ranks
            except (ConnectionFailed, ApiError) as error:
                # Once it is over, the connections may be closed under a heartbeat that was slow.
                if not self._stop.is_set():
                    log.warning("no heartbeat, training goes on: %s", error)


def run(
    client: WorkerClient, start: AttemptStart, config: dict[str, object]
) -> BaseException | None:
    """Run the attempt to its end; returns what made it fail, or None."""
    try:
        start = with_sound_checkpoint(client, start)
    except (OSError, ValueError) as error:
        return error
    announce(client, start.spec.resources.workers)
    return run_ranks(start, config | {"start": start.model_dump(mode="json")})


def announce(client: WorkerClient, workers: int) -> None:
    """Tell that the ranks are started now. Nothing depends on it but what people see.

    Raises:
        StaleAttempt: the attempt is no longer wanted.
    """
    message = f"Starting {workers} rank{'s' if workers > 1 else ''}"
    log.info("%s", message)
    try:
        client.event("phase", message, {"phase": "ranks"}, patience=ANNOUNCE_SECONDS)
    except StaleAttempt:
        raise
    except (ConnectionFailed, ApiError) as error:
        log.warning("the API was not told so: %s", error)


def with_sound_checkpoint(client: WorkerClient, start: AttemptStart) -> AttemptStart:
    """What to do, with a checkpoint to go on from whose files are what was registered.

    The service is told of each that is damaged, and names the one before it. That costs neither an
    attempt nor a restart, so it is done here, before the ranks are started.

    Raises:
        OSError: the store cannot be read now.
        ValueError: the checkpoint that a clone was made from is damaged.
    """
    while (resume := start.resume) is not None:
        damage = find_damage(resume.uri, resume.files)
        if damage is None:
            break
        if not exists(start.dataset.index_uri):
            # A store that is not there, such as a volume that is not mounted, must not cost a job
            # all of its checkpoints.
            raise OSError(f"the store of {start.dataset.index_uri} is not there")
        log.warning("checkpoint %s is damaged: %s", resume.checkpoint_id, damage)
        start = client.damaged(resume.checkpoint_id, damage)
        if resume.branch:
            raise ValueError(
                f"the checkpoint {resume.checkpoint_id} that this job was cloned from is damaged: {damage}"
            )
    return start


def run_ranks(start: AttemptStart, config: dict[str, object]) -> BaseException | None:
    """Run all ranks to their end; returns what made them fail, or None."""
    os.environ.update({k: v for k, v in RAY_SETTINGS.items() if k not in os.environ})
    # Only now: these imports take seconds, and the job already shows as running.
    import ray
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

    from workers.loop import train_rank
    from workers.process_group import OwnAddress

    ray.init(
        # Not where it connects, in colours: a log is read where its dashboard cannot be reached.
        logging_level=logging.WARNING,
        # What Ray Train asks of the cluster's state would else look for the cluster on its node,
        # where another Ray may run, too.
        runtime_env={"env_vars": {"RAY_ADDRESS": os.environ["RAY_ADDRESS"]}},
    )
    # Ray's handler would end the log of a job that is stopped with a stack, as if that were a crash.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resources = start.spec.resources
    trainer = TorchTrainer(
        train_rank,
        train_loop_config=config,
        torch_config=OwnAddress(backend="nccl" if resources.gpus_per_worker else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=resources.workers,
            use_gpu=bool(resources.gpus_per_worker),
            resources_per_worker={
                "CPU": resources.cpus_per_worker,
                **({"GPU": 1} if resources.gpus_per_worker else {}),
            },
        ),
        run_config=RunConfig(
            name="ray-train",
            # A place all nodes see; Ray keeps nothing but its own marker there. A local one goes
            # as a plain path: as a URI, pyarrow would stumble over a space or an umlaut in it.
            storage_path=start.artifacts_uri.removeprefix("file://"),
            # Every failure ends the attempt: the dispatcher starts the next one.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            # Its warnings have tracebacks of what is harmless; what the ranks do they log themselves.
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        trainer.fit()
    except WorkerGroupError as error:
        return cause_of(error.worker_failures) or error
    except TrainingFailedError as error:
        failed: BaseException = error
        return failed
    return None


class RankDied(Exception):
    """The process of a rank ended without raising anything: it was killed, crashed, or lost its node."""


def cause_of(failures: Mapping[int, Exception]) -> BaseException | None:
    """What a person must know of the failures of ranks: an error of one makes its peers' collectives
    fail."""
    causes = sorted(failures.items(), key=lambda item: (_is_consequence(item[1]), item[0]))
    if not causes:
        return None
    from ray.exceptions import RayActorError

    rank, failure = causes[0]
    cause = _unwrap(failure)
    if isinstance(cause, RayActorError):
        # Ray's last line is the reason; those before it name its actor.
        reason = str(cause).strip().splitlines()[-1].strip()
        died = RankDied(f"The process of rank {rank} ended: {reason}")
        died.__cause__ = cause  # All that Ray says, for the traceback.
        return died
    return cause


def describe(error: BaseException) -> dict[str, str]:
    """An error as the API stores it."""
    lines = traceback.format_exception(error)
    short_of = _memory_short_of(error)
    kind = "rank-died" if isinstance(error, RankDied) else type(error).__name__
    return {
        "type": kind if short_of is None else "out-of-memory",
        "message": tellable(
            _message(error) if short_of is None else OUT_OF_MEMORY.format(short_of)
        ),
        "traceback": tellable("".join(lines)[-10_000:]),
    }


def tellable(text: str) -> str:
    """What the API takes of a text: if it refused the report of a failure, the driver would seem to have
    ended without a word, and be started again."""
    sound = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return sound[:_LONGEST_TEXT]


def _memory_short_of(error: BaseException) -> str | None:
    """Whose memory was too small, or None: it is another error."""
    # By name, for the driver has no other use for torch.
    if type(error).__name__ == "OutOfMemoryError":
        return "its GPU" if type(error).__module__.partition(".")[0] == "torch" else "its node"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        return "its node"
    return None


def _message(error: BaseException) -> str:
    """A line for people. Ray puts whole tracebacks of other processes, or a list of the ids of all that
    has died, into the text of its errors; these are in the traceback and the log."""
    text = str(error) or type(error).__name__
    if type(error).__module__.partition(".")[0] != "ray":
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    quoted = any("Traceback (most recent call last)" in x or "ray::" in x for x in lines)
    if quoted:
        return lines[-1]
    return next((line for line in lines if not line.endswith(":")), lines[0])  # not a heading


def of_surroundings(error: BaseException) -> bool:
    """Whether an error comes of disks, networks, memory or other processes, which may change, and
    not of the training itself."""
    return (
        isinstance(error, OSError | MemoryError | RankDied)
        or type(error).__module__.partition(".")[0] == "ray"
        or _is_consequence(error)
    )


def _unwrap(error: BaseException) -> BaseException:
    """The exception that a rank raised, out of what Ray wraps it in."""
    found = (getattr(error, name, None) for name in ("cause", "health_check_failure", "__cause__"))
    cause = next((each for each in found if each is not None), None)
    return _unwrap(cause) if isinstance(cause, BaseException) else error


def _is_consequence(error: BaseException) -> bool:
    return "gloo" in str(error).lower() or "nccl" in str(error).lower()


if __name__ == "__main__":
    sys.exit(main())
