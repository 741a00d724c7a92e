"""Keeper of a node's standby processes: `python -m workers.standby_keeper`, as a child of `ray start`.

It requests new processes from the node's raylet, as described in `workers.standby`, whenever some were used.
Ray has no public function for this: if another version of Ray answers differently, the keeper ends with a
message, and attempts start all their processes themselves.

With a file `NEEDED`, the processes end some time after the file was last touched, and start when it is touched again.
"""

import copy
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workers.standby import (
    CONTROLLER_VARIABLES,
    HOOK,
    RANK_VARIABLES,
    ROLE_VARIABLE,
    job_environment,
    standby_ranks,
)

logger = logging.getLogger("workers.standby_keeper")

_CHECK_SECONDS = 1.0
# Delay, so that the start of an attempt does not share its cores with the start of new processes.
_REFILL_AFTER_SECONDS = 15.0
_KEEP_SECONDS = 10 * 365 * 24 * 3600
# Standby processes hold about 1 GB, for somebody who may submit another job soon.
_NEEDED_SECONDS = 600
# Supervisor of the driver, of Ray's Jobs API.
_SUPERVISORS = 1
_CONTROLLERS = 1
_RPC_SECONDS = 30.0


@dataclass(frozen=True)
class Raylet:
    """The raylet of this node."""

    process: psutil.Process
    gcs_address: str
    node_id: str


class Need:
    """Whether somebody may soon need the standby processes, by the time at which a file was touched."""

    def __init__(self, file: Path | None) -> None:
        """Create it; `None`: they are always needed."""
        self._file, self._touched, self._until = file, 0, float("-inf")

    @property
    def keep_seconds(self) -> int:
        """How long an unused process stays."""
        return _KEEP_SECONDS if self._file is None else _NEEDED_SECONDS

    def exists(self) -> bool:
        """Return whether the file was touched within this time, by a clock that does not jump."""
        if self._file is None:
            return True
        now = time.monotonic()
        try:
            touched = self._file.stat().st_mtime_ns
        except OSError:
            # There may be none yet; an error would end the keeper until Ray's next start.
            return False
        if touched != self._touched:
            self._touched, self._until = touched, now + _NEEDED_SECONDS
        return now < self._until


@dataclass(frozen=True, eq=False)
class Pool:
    """Standby processes of one kind."""

    size: int
    environment: str
    """The runtime environment, as Ray serializes it."""
    variables: dict[str, str]
    """Environment variables that only processes of this kind have."""


def main() -> int:
    """Keep standby processes until the parent process ends; return the exit code."""
    return run(psutil.Process(os.getppid()))


def run(parent: psutil.Process, needed: Path | None = None) -> int:
    """Keep standby processes while `parent` runs; return the exit code.

    Args:
        needed: file that is touched when the processes may soon be needed; `None`: they always are.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        ranks = standby_ranks()
    except ValueError as error:
        logger.error("%s", error)
        return 2
    if ranks == 0:
        return 0
    try:
        keep(parent, ranks, Need(needed))
    except psutil.NoSuchProcess:
        return 0  # Ray has ended.
    except Exception:
        logger.exception("no standby processes, attempts start without them")
        return 1
    return 0


def keep(parent: psutil.Process, ranks: int, need: Need) -> None:
    """Keep standby processes while `parent` runs `ray start`."""
    raylet = _wait_for(lambda: find_raylet(parent), parent)
    node = _wait_for(lambda: _node(raylet), parent)
    pools = build_pools(
        ranks if node.resources_total.get("CPU", 0) > 0 else 0, is_head=node.is_head_node
    )
    missing_since: dict[Pool, float] = dict.fromkeys(pools, -_REFILL_AFTER_SECONDS)
    address = f"{node.node_manager_address}:{node.node_manager_port}"
    while parent.is_running() and raylet.process.is_running():
        now = time.monotonic()
        for pool in pools if need.exists() else ():
            missing = pool.size - waiting(raylet.process, pool.variables)
            if missing <= 0:
                missing_since.pop(pool, None)
            elif now - missing_since.setdefault(pool, now) >= _REFILL_AFTER_SECONDS:
                start(address, pool.environment, missing, need.keep_seconds)
                # A process counts only after it has the environment of the pool.
                missing_since[pool] = time.monotonic()
        time.sleep(_CHECK_SECONDS)


def build_pools(ranks: int, *, is_head: bool) -> list[Pool]:
    """Build the pools of a node.

    Args:
        ranks: 0 on a node that trains nothing, such as the head of a cluster, which runs no driver of an attempt.
        is_head: whether the node is the head, which runs the other drivers.
    """
    job = with_hook(job_environment())

    def pool(size: int, variables: dict[str, str]) -> Pool:
        # Same serialization as in Ray's core for an actor whose job also has an environment.
        merged = job | {"env_vars": job["env_vars"] | variables}
        return Pool(size, json.dumps(merged, sort_keys=True, separators=(",", ":")), variables)

    # Same serialization as in Ray's Python part.
    supervisor = supervisor_variables(is_head=is_head)
    environment = json.dumps({"env_vars": supervisor}, sort_keys=True)
    pools = [Pool(_SUPERVISORS, environment, supervisor)] if ranks or is_head else []
    if ranks:
        pools += [pool(ranks, RANK_VARIABLES), pool(_CONTROLLERS, CONTROLLER_VARIABLES)]
    return pools


def supervisor_variables(*, is_head: bool) -> dict[str, str]:
    """Return the variables that Ray's Jobs API sets for a supervisor, which starts a driver.

    Those about accelerators are set if the request does not tell where the driver may run.
    """
    from ray._private.accelerators.npu import NOSET_ASCEND_RT_VISIBLE_DEVICES_ENV_VAR
    from ray._private.accelerators.nvidia_gpu import NOSET_CUDA_VISIBLE_DEVICES_ENV_VAR
    from ray._private.ray_constants import RAY_WORKER_NICENESS

    niceness = {RAY_WORKER_NICENESS: "0"}
    if not is_head:
        return niceness
    return niceness | {
        NOSET_CUDA_VISIBLE_DEVICES_ENV_VAR: "1",
        NOSET_ASCEND_RT_VISIBLE_DEVICES_ENV_VAR: "1",
    }


def with_hook(environment: dict[str, Any]) -> dict[str, Any]:
    """Return a runtime environment in the form passed on by `ray.init`."""
    from ray._private.runtime_env.setup_hook import export_setup_func_module

    result: dict[str, Any] = export_setup_func_module(copy.deepcopy(environment), HOOK)
    return result


def start(address: str, environment: str, count: int, keep_seconds: int) -> None:
    """Make the raylet at `address` start processes without a job, and end those unused for some time.

    If it does not answer, as on a busy machine, the processes are missing until the next request.
    """
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.common_pb2 import Language
    from ray.core.generated.node_manager_pb2 import PrestartWorkersRequest
    from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

    request = PrestartWorkersRequest(
        language=Language.PYTHON, num_workers=count, keep_alive_duration_secs=keep_seconds
    )
    request.runtime_env_info.serialized_runtime_env = environment
    with init_grpc_channel(address) as channel:
        try:
            NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=_RPC_SECONDS)
        except grpc.RpcError as error:
            if error.code().name not in ("DEADLINE_EXCEEDED", "UNAVAILABLE"):
                raise
            logger.warning("no answer from the raylet, its standby processes start later")


def waiting(raylet: psutil.Process, variables: dict[str, str]) -> int:
    """Return the number of processes with these variables that start, or wait for work."""
    count = 0
    for process in raylet.children():
        try:
            words = process.cmdline()
            unused = words[:1] == ["ray::IDLE"] or any("default_worker.py" in w for w in words)
            if unused:
                given = process.environ()
                has_role = given.get(ROLE_VARIABLE) == variables.get(ROLE_VARIABLE)
                count += has_role and variables.items() <= given.items()
        except psutil.Error:
            continue  # it has just ended
    return count


def find_raylet(parent: psutil.Process) -> Raylet | None:
    """Return the raylet below `ray start`; `None` if there is none yet."""
    for process in parent.children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words and words[0].endswith("/raylet"):
            options = dict(word.partition("=")[::2] for word in words)
            return Raylet(process, options["--gcs-address"], options["--node_id"])
    return None


def _node(raylet: Raylet) -> Any:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

    for node_id, node in GcsClient(address=raylet.gcs_address).get_all_node_info().items():
        if node_id.hex() == raylet.node_id:
            return node
    return None


def _wait_for(find: Callable[[], Any], parent: psutil.Process) -> Any:
    while (result := find()) is None:
        if not parent.is_running():
            raise psutil.NoSuchProcess(parent.pid)
        time.sleep(_CHECK_SECONDS)
    return result


if __name__ == "__main__":
    sys.exit(main())
