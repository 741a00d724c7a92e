"""Removal of old Ray log files, which Ray never removes for ended processes.

They contain the output of all ranks. Each process of an attempt removes them on its node, so that they do not grow
with the number of attempts. Logs of Ray's services, which Ray rotates, and of other users' drivers are retained.
"""

import logging
import re
import time
from contextlib import suppress
from pathlib import Path

import psutil

from service.submission_ids import is_submission_id

logger = logging.getLogger(__name__)

KEEP_SECONDS = 7 * 24 * 3600.0
"""Log files stay this long after their last change: longer than the dispatcher may copy one."""
_OF_DRIVER = re.compile(r"job-driver-(?P<submission_id>.+)\.log")
_DEMAND_PROGRAM = re.compile("demand-[0-9a-f]{32}")  # see `service.dispatcher.autoscaler`
_OF_PROCESS = re.compile(
    r"(?:worker|python-core-worker|python-core-driver)-.+[-_](?P<pid>\d+)\.(?:log|out|err)(?:\.\d+)?"
)


def remove_local_logs() -> None:
    """Remove the old log files of this process's Ray node. A failure is logged."""
    from ray._private import worker

    try:
        node = worker._global_node
        if node is not None:
            remove_old_logs(Path(node.get_logs_dir_path()))
    except (AttributeError, OSError) as error:  # must not fail a training
        logger.warning("old log files of Ray are not removed: %s", error)


def remove_old_logs(folder: Path) -> None:
    """Remove the files in a log folder that are older than a week and have no writer."""
    before = time.time() - KEEP_SECONDS
    for file in folder.iterdir():
        if not _belongs_to_ended_process(file.name):
            continue
        with suppress(FileNotFoundError):  # another process may do the same
            if file.lstat().st_mtime < before:
                file.unlink()


def _belongs_to_ended_process(name: str) -> bool:
    driver = _OF_DRIVER.fullmatch(name)
    if driver is not None:
        # Our running processes write all the time, or end at once.
        name = driver["submission_id"]
        return is_submission_id(name) or _DEMAND_PROGRAM.fullmatch(name) is not None
    match = _OF_PROCESS.fullmatch(name)
    # A standby process may wait for weeks, and Ray then still forwards its output.
    return match is not None and not psutil.pid_exists(int(match["pid"]))
