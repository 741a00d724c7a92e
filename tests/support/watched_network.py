"""A machine in a network namespace whose packets to other machines are recorded (Linux, as root)."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.two_nodes import in_network, run_command

# Addresses reserved for documentation (RFC 5737), which no network uses.
_OWN, _ROUTER, _RESOLVER = "192.0.2.1", "192.0.2.254", "192.0.2.53"
_IPV4, _UDP, _DNS = 0x0800, 17, 53


@dataclass
class WatchedMachine:
    """A machine with a resolver and a route to every address, of which none answers."""

    name: str
    """Name of its network namespace."""
    socket: socket.socket

    def run(
        self, command: list[str], env: dict[str, str], cwd: Path, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            env=env,
            cwd=cwd,
            timeout=seconds,
            capture_output=True,
            text=True,
        )

    def sent(self) -> list[str]:
        """Return where the packets went since the last call: an address and port, or a name that was looked up."""
        found: list[str] = []
        while True:
            try:
                packet = self.socket.recv(65536)
            except BlockingIOError:
                return found
            length = 4 * (packet[0] & 15)
            port = int.from_bytes(packet[length + 2 : length + 4])
            found.append(f"{socket.inet_ntoa(packet[16:20])}:{port}")
            if (packet[9], port) == (_UDP, _DNS):
                found[-1] = _name(packet[length + 8 + 12 :])


@contextmanager
def watched_machine() -> Iterator[WatchedMachine]:
    """Yield a machine, and remove it afterwards."""
    name = f"dasl-watched-{os.getpid()}"
    with ExitStack() as stack:
        run_command("ip", "netns", "add", name)
        stack.callback(run_command, "ip", "netns", "delete", name)
        etc = Path("/etc/netns") / name
        etc.mkdir(parents=True)
        stack.callback(shutil.rmtree, etc)
        (etc / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
        (etc / "resolv.conf").write_text(f"nameserver {_RESOLVER}\noptions timeout:1 attempts:1\n")
        inside = ("ip", "-n", name)
        cable = "link add out0 type veth peer name sink0"
        run_command(*inside, *cable.split())
        for device in ("lo", "out0", "sink0"):
            run_command(*inside, "link", "set", device, "up")
        run_command(*inside, "address", "add", f"{_OWN}/24", "dev", "out0")
        for address in (_ROUTER, _RESOLVER):
            neighbor = f"neigh add {address} lladdr 02:00:00:00:00:01 dev out0"
            run_command(*inside, *neighbor.split())
        run_command(*inside, "route", "add", "default", "via", _ROUTER)
        with in_network(name):
            sink = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_IPV4))
        stack.enter_context(sink)
        sink.bind(("sink0", _IPV4))
        sink.setblocking(False)
        yield WatchedMachine(name, sink)


def _name(question: bytes) -> str:
    """Return the name of a question of DNS (RFC 1035, 4.1.2)."""
    labels, at = [], 0
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    return ".".join(labels)
