"""A private Ray on this machine: loopback only, own ports, own token, never orphaned."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

# Training keeps nothing in the object store, and /dev/shm may be small.
_OBJECT_STORE_BYTES = 200_000_000
# A Unix socket's path has at most 107 bytes; Ray adds up to 71 for its session and socket.
_LONGEST_FOLDER = 36
_GRACE_SECONDS = 2.0
# The settings that jobs need of those in our environment; what else they need the dispatcher hands them.
_OF_WORKERS = ("DASL_CACHE_DIR", "DASL_CACHE_MAX_BYTES")


class LocalRay:
    """A Ray head node under a subreaper process; it can be started again after it ended.

    Args:
        folder: for the files of Ray's newest session, its logs among them.
        log: what `ray start` prints. Ray works in its folder, which must be nobody else's to write.
        cpus: how many CPUs Ray hands out; `None`: those of the machine. GPUs are found by Ray.
    """

    def __init__(self, folder: Path, log: Path, cpus: int | None = None) -> None:
        self.log = log
        self.token = secrets.token_hex(32)
        self._folder, self._cpus = folder, cpus
        self._guard: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        """Start Ray, which answers at `address` after about ten seconds.

        Raises:
            ValueError: Ray is not installed beside this Python.
        """
        assert self._guard is None, "it runs already"
        folder = _empty_folder(self._folder)
        ports = _free_ports(9)
        self.address = f"http://127.0.0.1:{ports[0]}"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._guard = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-P",
                        "-m",
                        "service.embedded.subreaper",
                        str(_GRACE_SECONDS),
                    ),
                    *_command(folder, ports, self._cpus),
                ],
                # Ours is the only writing end: it closes however this process ends.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(self.token, ports),
                # Ray's processes import from the folder they work in before any other: it must not be
                # whichever one the service is started in. Nor Ray's own, which it opens to everybody.
                cwd=self.log.parent,
                # Ctrl-C in a terminal reaches `dasl serve` alone, which then ends the rest in order.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether `ray start` still runs; it ends when any part of Ray dies."""
        return self._guard is not None and self._guard.poll() is None

    def stop(self) -> None:
        """End Ray and all its processes; when this returns, none is left."""
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()
        self._guard = None
        _remove_link(self._folder)


def _remove_link(folder: Path) -> None:
    """Remove a link of `_empty_folder` and the temporary folder of what it names."""
    if folder.is_symlink():
        shutil.rmtree(folder.readlink().parent, ignore_errors=True)
        folder.unlink()


def _empty_folder(folder: Path) -> Path:
    """Remove the files of the last session; where the next ones go.

    That is the folder itself, or, where it is too long for a socket's path, a temporary one that
    it links to. A temporary one goes when Ray is stopped, the folder itself at the next start.
    """
    _remove_link(folder)
    shutil.rmtree(folder, ignore_errors=True)
    # Ray also refuses every job when its folder has a space or a letter beyond ASCII in it.
    plain = str(folder).isascii() and " " not in str(folder)
    if plain and len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        return folder
    # Not TMPDIR, which may be long as well. Ray opens its own folder to everybody, so that one lies in
    # another that is ours alone, as it does in the home.
    temporary = Path(tempfile.mkdtemp(prefix="dasl-ray-", dir="/tmp")) / "ray"
    temporary.mkdir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(temporary)
    return temporary


def _command(folder: Path, ports: list[int], cpus: int | None) -> list[str]:
    ray = Path(sysconfig.get_path("scripts")) / "ray"
    if not ray.exists():
        raise ValueError('Ray is not installed here: pip install "dasl[server,training]"')
    options = {
        "node-ip-address": "127.0.0.1",
        "dashboard-host": "127.0.0.1",
        "dashboard-port": ports[0],
        "port": ports[1],
        "dashboard-agent-listen-port": ports[2],
        "dashboard-agent-grpc-port": ports[3],
        "metrics-export-port": ports[4],
        "runtime-env-agent-port": ports[5],
        "ray-client-server-port": ports[6],
        "temp-dir": folder,
        "object-store-memory": _OBJECT_STORE_BYTES,
        # The dashboard and its agent carry the Jobs API. Drivers get their workers' output from
        # the log monitor.
        "include-dashboard": "true",
        **({} if cpus is None else {"num-cpus": cpus}),
    }
    return [
        *(str(ray), "start", "--head", "--block", "--disable-usage-stats", "--log-style=record"),
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def _environment(token: str, ports: list[int]) -> dict[str, str]:
    # Neither settings meant for another Ray, nor the service's own, passwords among them.
    foreign = ("RAY_ADDRESS", "DASL_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    own |= {name: os.environ[name] for name in _OF_WORKERS if name in os.environ}
    if cache := own.get("DASL_CACHE_DIR"):
        own["DASL_CACHE_DIR"] = os.path.abspath(cache)  # Ray works in another folder.
    return own | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Despite its name this is what keeps every part of Ray on 127.0.0.1: otherwise Ray
        # replaces a loopback address by the machine's own and listens on all interfaces.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Two ports that would be the same for every Ray of the machine.
        "AUTOSCALER_METRIC_PORT": str(ports[7]),
        "DASHBOARD_METRIC_PORT": str(ports[8]),
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
