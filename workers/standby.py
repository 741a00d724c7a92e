"""Standby processes: Ray workers of a node that wait for an attempt with their imports done.

Most of the start time is imports of Ray Train and PyTorch. Ray starts a process for an actor only if
no idle one has the same runtime environment, so `workers.standby_keeper` has each node start a few with
the environment defined here. Ray gives a process to at most one job, and ends it with its actor.
"""

import importlib
import os
import sys
from typing import Any

from workers.settings import RAY_SETTINGS

COUNT_VARIABLE = "DASL_STANDBY_RANKS"
"""Number of ranks that a node keeps ready; without it, Ray starts every process from scratch."""
ROLE_VARIABLE = "STANDBY_ROLE"
RANK, CONTROLLER = "rank", "controller"
# Variables that a process of each role has in addition to those of `job_environment`.
RANK_VARIABLES, CONTROLLER_VARIABLES = {ROLE_VARIABLE: RANK}, {ROLE_VARIABLE: CONTROLLER}
HOOK = "workers.standby.prepare"

# `workers.ray_train.Controller`.
_CONTROLLER_MODULES = (
    "pyarrow.fs",
    "ray.train.v2._internal.execution.controller",
    "workers.process_group",
    "workers.rank",
    "workers.ray_train",
    "workers.trainer",
)
_RANK_MODULES = (
    *_CONTROLLER_MODULES,
    "ray.train.torch",
    "dasl_core.train.build",
    "service.client.worker",
    "workers.placement",
    "workers.reporter",
    "workers.scratch",
)


def standby_ranks() -> int:
    """Return the number of standby ranks of this node, or 0, from the environment; a ValueError if it is no number."""
    given = os.environ.get(COUNT_VARIABLE) or "0"
    if not given.isdecimal():
        raise ValueError(f"{COUNT_VARIABLE} must be a number, 0 or greater; given {given!r}")
    return int(given)


def job_environment() -> dict[str, Any]:
    """Return the runtime environment of an attempt: the same for all attempts of a deployment."""
    variables = {name: os.environ.get(name, value) for name, value in RAY_SETTINGS.items()}
    return {
        "env_vars": variables | {"PYTHONUNBUFFERED": "1"},
        "worker_process_setup_hook": HOOK,
    }


def prepare() -> None:
    """Import the modules of this process before it gets work. Ray calls this in each process.

    A failing import is only reported here, because Ray ends a process in which this function fails; the job that
    needs the module fails when it uses it.
    """
    import ray

    # By default Ray Train looks for a cluster on its node, where another Ray may run.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    modules = _RANK_MODULES if os.environ.get(ROLE_VARIABLE) == RANK else _CONTROLLER_MODULES
    import_all(modules)


def import_all(modules: tuple[str, ...]) -> None:
    """Import modules; report those that cannot be imported."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  # Any module may run any code.
            print(f"{name} was not imported in advance: {error!r}", file=sys.stderr)
