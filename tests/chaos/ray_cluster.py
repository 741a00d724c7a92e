"""A Ray cluster on this machine: a head without CPUs, and nodes that train. Each can be killed by itself.

The nodes are restarted at once, as a container engine does. Unlike with `LocalRay`, the head keeps its
ports, so that the dispatcher and the nodes find it again.
"""

import os
import secrets
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path

from service.embedded.subreaper import descendants
from tests.support.polling import until
from tests.support.processes import free_port

_GRACE_SECONDS = "2"
_OBJECT_STORE_BYTES = 200_000_000


class RayCluster:
    """A head and nodes, with the interface of `service.embedded.local_ray.LocalRay`.

    Args:
        log: receives the output of all `ray start`.
        cpus: CPUs of each node.
    """

    def __init__(self, log: Path, cpus: tuple[int, ...]) -> None:
        self.log = log
        self.token = secrets.token_hex(32)
        self._cpus = cpus
        self._port, self._dashboard = free_port(), free_port()
        self.address = f"http://{_address(0)}:{self._dashboard}"
        # A socket's path has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="dasl-ray-", dir="/tmp")
        self._guards: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the head and the nodes."""
        head = (
            f"--head --num-cpus=0 --port={self._port} --temp-dir={self._folder.name} "
            f"--dashboard-host={_address(0)} --dashboard-port={self._dashboard} "
            f"--ray-client-server-port={free_port()}"
        )
        self._guards = [self._keep_running(0, head)]
        # A node that does not find the head within half a minute begins again.
        until(lambda: "Ray runtime started" in self.log.read_text() or None, "Ray's head")
        for number, cpus in enumerate(self._cpus, 1):
            role = f"--address={_address(0)}:{self._port} --num-cpus={cpus}"
            self._guards.append(self._keep_running(number, role))

    def stop(self) -> None:
        """Stop everything and wait until all processes have ended."""
        for guard in self._guards:
            assert guard.stdin is not None
            guard.stdin.close()
        for guard in self._guards:
            guard.wait()
        self._guards = []
        self._folder.cleanup()

    @property
    def running(self) -> bool:
        """Whether the supervisors run."""
        return all(guard.poll() is None for guard in self._guards)

    @property
    def nodes(self) -> int:
        """Number of nodes beside the head."""
        return len(self._cpus)

    def kill_head(self) -> None:
        """Kill all processes of the head, those of drivers included."""
        _kill_below(self._guards[0])

    def kill_node(self, number: int) -> None:
        """Kill all processes of a node, those of ranks included."""
        _kill_below(self._guards[1 + number])

    def _keep_running(self, host: int, role: str) -> subprocess.Popen[bytes]:
        ray = Path(sysconfig.get_path("scripts")) / "ray"
        command = (
            f"{shlex.quote(str(ray))} start --block --disable-usage-stats --log-style=record "
            f"--node-ip-address={_address(host)} --object-store-memory={_OBJECT_STORE_BYTES} {role}"
        )
        always = ["sh", "-c", f"while true; do {command}; sleep 1; done"]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "service.embedded.subreaper", _GRACE_SECONDS, *always],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self.log.parent,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        excluded = ("RAY_ADDRESS", "DASL_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(excluded)}
        environment["DASL_CACHE_DIR"] = os.environ["DASL_CACHE_DIR"]
        return environment | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            # As `LocalRay`: start no idle workers.
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
            # How long a node waits for a lost head before it exits, as in docker-compose.yml.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
        }


def _address(host: int) -> str:
    """Return the address of the head (0) or of a node. Ray replaces 127.0.0.1 by the machine's own."""
    return f"127.0.0.{2 + host}"


def _kill_below(guard: subprocess.Popen[bytes]) -> None:
    """Kill all descendants of a guard but the shell that restarts `ray start`."""
    while below := _processes_of_node(guard.pid):
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not _processes_of_node(guard.pid) & below:
            return


def _processes_of_node(guard: int) -> set[int]:
    shells = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()[:1]
    return descendants(guard) - {int(shell) for shell in shells}
