"""Ray on a single machine without unneeded parts: `python -m workers.local_head NEEDED OPTIONS`.

`NEEDED` is the file of `workers.standby_keeper`; the options are those of `ray start`. Ray's command has no option to
omit its client server, or the parts of its dashboard that only its page needs; together they take 150 MB. Nor has it
one for how often its log monitor looks for new lines, which takes half a percent of a core. If another version of Ray
names its functions differently, all parts are started as they are.

After the start of Ray, this process is replaced by a small one, which keeps the standby processes of the node, and ends
when any part of Ray ends.
"""

import os
import runpy
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

from workers import standby_keeper

_STARTED, _LOG_MONITOR = "--started", "--log-monitor"
_LOG_MONITOR_SECONDS = 0.5
# The Jobs API, the states of the cluster and of its nodes, and the logs.
_MODULES = "JobHead,NodeHead,ReportHead,StateHead"


def main(arguments: list[str]) -> int:
    """Start Ray, and wait until any part of it ends; return 1."""
    first, *rest = arguments
    if first == _LOG_MONITOR:
        return _monitor_logs(rest)
    if first == _STARTED:
        signal.signal(signal.SIGTERM, _end)
        keeper = threading.Thread(
            target=standby_keeper.run, args=(psutil.Process(), Path(*rest)), daemon=True
        )
        keeper.start()
        os.wait()
        return 1
    _change_parts()
    from ray.scripts.scripts import start

    start.main(rest, standalone_mode=False)
    # The imports of the command take 120 MB.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "workers.local_head", _STARTED, first])


def _end(*_: object) -> NoReturn:
    """End all parts of Ray, also if the guard of this process was killed, which else ends them."""
    for part in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            part.kill()
    os._exit(1)


def _change_parts() -> None:
    from ray._private import node, services

    start_process = services.start_ray_process

    def start_ray_process(command: list[str], process_type: str, *rest: Any, **options: Any) -> Any:
        if process_type == "dashboard":
            command = [*command, f"--modules-to-load={_MODULES}"]
        # Its script follows Python and the options of that.
        script = next((i for i, word in enumerate(command) if word.endswith(".py")), 0)
        if process_type == "log_monitor" and script:
            own = [sys.executable, "-P", "-m", "workers.local_head", _LOG_MONITOR]
            command = [*own, *command[script:]]
        # Ray's command leaves its parts alone when it ends. They end if this process is killed.
        return start_process(command, process_type, *rest, **options | {"fate_share": True})

    services.start_ray_process = start_ray_process
    node.Node.start_ray_client_server = lambda _node: None


def _monitor_logs(command: list[str]) -> int:
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(max(float(seconds), _LOG_MONITOR_SECONDS))
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
