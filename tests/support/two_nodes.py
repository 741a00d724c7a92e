"""Two machines in network namespaces, with a cable between them that can be cut (Linux, as root).

On both, the machine's name resolves to a loopback address, as in Debian's `/etc/hosts`.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.support.polling import until

Machine = Literal["head", "node"]
# Addresses reserved for documentation (RFC 5737), which no network uses.
ADDRESSES: dict[Machine, str] = {"head": "192.0.2.1", "node": "192.0.2.2"}
_CABLE = "cable0"


@dataclass
class TwoNodes:
    """The two machines, of which each has one end of the cable."""

    names: dict[Machine, str]
    """Names of the network namespaces."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, machine: Machine, command: Sequence[str], env: Mapping[str, str], output: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process on a machine; append its output to a file."""
        with output.open("ab") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[machine], *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(env),
            )
        self.processes.append(process)
        return process

    def cut(self) -> None:
        """Cut the cable."""
        self._ip("node", "link", "set", _CABLE, "down")

    def mend(self) -> None:
        """Connect the machines again."""
        self._ip("node", "link", "set", _CABLE, "up")

    @contextmanager
    def on(self, machine: Machine) -> Iterator[None]:
        """Let the calling thread open its sockets on a machine."""
        with in_network(self.names[machine]):
            yield

    def _ip(self, machine: Machine, *words: str) -> None:
        run_command("ip", "-n", self.names[machine], *words)

    def _plug_in(self) -> None:
        head, node = self.names["head"], self.names["node"]
        run_command(
            *f"ip link add {_CABLE} netns {head} type veth peer name {_CABLE} netns {node}".split()
        )
        for machine, address in ADDRESSES.items():
            self._ip(machine, "address", "add", f"{address}/24", "dev", _CABLE)
            for device in ("lo", _CABLE):
                self._ip(machine, "link", "set", device, "up")

    def _kill_all(self) -> None:
        """Kill every process on both machines."""

        def ended() -> bool | None:
            left = [
                pid
                for name in self.names.values()
                for pid in run_command("ip", "netns", "pids", name)
            ]
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            return not left or None

        until(ended, "the end of all processes", pause=0.1)
        for process in self.processes:
            process.wait()


def why_impossible() -> str | None:
    """Return why this process cannot create network namespaces; None if it can."""
    if shutil.which("ip") is None:
        return "needs the command `ip` (Debian's package iproute2)"
    cable = "ip link add end0 type veth peer name end1"
    command = ["unshare", "--net", "--mount", *cable.split()]
    probe = subprocess.run(command, capture_output=True, check=False)
    return "needs root, to connect network namespaces" if probe.returncode else None


@contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """Yield two connected machines; kill all their processes and remove them afterwards."""
    machines = TwoNodes({machine: f"dasl-{machine}-{os.getpid()}" for machine in ADDRESSES})
    with ExitStack() as stack:
        for name in machines.names.values():
            run_command("ip", "netns", "add", name)
            stack.callback(run_command, "ip", "netns", "delete", name)
            # `ip netns exec` mounts the files of this folder over those of `/etc`.
            etc = Path("/etc/netns") / name
            etc.mkdir(parents=True)
            stack.callback(shutil.rmtree, etc)
            (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")
        machines._plug_in()
        stack.callback(machines._kill_all)
        yield machines


@contextmanager
def in_network(name: str) -> Iterator[None]:
    """Let the calling thread open its sockets in a network namespace."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        _enter(there)
        yield
    finally:
        _enter(home)
        os.close(there)
        os.close(home)


def run_command(*command: str) -> list[str]:
    """Run a command and return the words of its output."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def _enter(namespace: int) -> None:
    # `os.setns` exists from Python 3.12 on.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
