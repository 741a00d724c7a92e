"""Ray on a single machine without unneeded parts: `python -m workers.local_head OPTIONS`.

The options are those of `ray start`. Ray's command has no option to omit its client server, or the parts of its
dashboard that only its page needs; together they take 150 MB. If another version of Ray names its functions
differently, all parts are started.

After the start of Ray, this process is replaced by a small one, which keeps the standby processes of the node, and ends
when any part of Ray ends.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import psutil

from workers import standby_keeper

_STARTED = "--started"
# The Jobs API, the states of the cluster and of its nodes, and the logs.
_MODULES = "JobHead,NodeHead,ReportHead,StateHead"


def main(arguments: list[str]) -> int:
    """Start Ray, and wait until any part of it ends; return 1."""
    if arguments == [_STARTED]:
        threading.Thread(target=standby_keeper.run, args=(psutil.Process(),), daemon=True).start()
        os.wait()
        return 1
    _leave_parts_out()
    from ray.scripts.scripts import start

    start.main(arguments, standalone_mode=False)
    # The imports of the command take 120 MB.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "workers.local_head", _STARTED])


def _leave_parts_out() -> None:
    from ray._private import node, services

    start_process = services.start_ray_process

    def start_ray_process(command: list[str], process_type: str, *rest: Any, **options: Any) -> Any:
        if process_type == "dashboard":
            command = [*command, f"--modules-to-load={_MODULES}"]
        return start_process(command, process_type, *rest, **options)

    services.start_ray_process = start_ray_process
    node.Node.start_ray_client_server = lambda _node: None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
