"""The store through which ranks find each other."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not re-exported

from workers import process_group


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(process_group, "_store", None)  # the port is closed afterwards


def is_heard(address: str, port: int) -> bool:
    """Return whether the store accepts connections at this address."""
    try:
        socket.create_connection((address, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_store_listens_on_node_address_only() -> None:
    address, port = process_group.open_store()
    TCPStore(address, port, timeout=process_group.TIMEOUT).set("from", "another rank")
    assert process_group._store is not None
    assert process_group._store.get("from") == b"another rank"
    assert not is_heard("127.0.0.2", port)


def test_store_listens_on_all_addresses_if_node_lacks_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = socket.create_server

    def not_mine(address: tuple[str, int], **options: Any) -> socket.socket:
        if address[0]:
            raise OSError("Cannot assign requested address")
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", not_mine)
    address, port = process_group.open_store()
    TCPStore(address, port, timeout=process_group.TIMEOUT).set("from", "another rank")
    assert is_heard("127.0.0.2", port)


def test_rank_joins_and_leaves_process_group() -> None:
    address, port = process_group.open_store()
    process_group.join("gloo", address, port, rank=0, size=1)
    assert (dist.is_initialized(), dist.get_world_size()) == (True, 1)
    process_group.leave()
    assert not dist.is_initialized()
    process_group.leave()  # it may have failed before it joined


def test_rank_communicates_over_interface_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "removed after the test")
        monkeypatch.delenv(name)
    address, port = process_group.open_store()
    process_group.join("gloo", address, port, rank=0, size=1)
    process_group.leave()
    [loopback] = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    assert os.environ["GLOO_SOCKET_IFNAME"] == loopback
    assert os.environ["NCCL_SOCKET_IFNAME"] == f"={loopback}"


def test_interface_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {
        "lo": ["127.0.0.1", "::1"],
        "eth0": ["10.0.0.2", "fe80::2%eth0"],
        "eth1": ["10.0.1.2", "fd00::2"],
    }

    def address(text: str) -> Any:
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        return SimpleNamespace(family=family, address=text)

    hardware = SimpleNamespace(family=socket.AF_PACKET, address="02:42:ac:11:00:02")
    interfaces = {name: [hardware, *map(address, held)] for name, held in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    for name, held in addresses.items():
        for text in held:
            assert process_group.find_interface(text.partition("%")[0]) == name
    assert process_group.find_interface("192.0.2.7") is None, "behind NAT"


@pytest.mark.slow
def test_driver_and_controller_do_not_import_torch() -> None:
    """It would cost each attempt two seconds in both processes, one after the other."""
    code = """
import sys
from workers import driver, process_group, rank, trainer
trainer.LeanTrainer(rank.train_rank, backend_config=process_group.ProcessGroupConfig("gloo"))
assert "ray.train" in sys.modules
print([name for name in ("torch", "torchvision", "timm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
