"""The store through which ranks find each other."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

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
