"""Rendezvous of the ranks of an attempt on the address of rank 0's node.

With Ray's default, torch opens the store of the process group on all addresses of the machine, without
any secret. Any process that reaches the store could change the addresses that ranks exchange there.
"""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist
from ray.train.torch import TorchConfig

# Ray documents `Backend` for extension, but the reused parts of its torch backend have no public name.
from ray.train.torch.config import _set_torch_distributed_env_vars, _TorchBackend
from torch.distributed import TCPStore  # type: ignore[attr-defined]

# Keeps the store alive for the lifetime of rank 0's process.
_store: TCPStore | None = None


@dataclass
class NodeAddressConfig(TorchConfig):  # type: ignore[misc]  # Ray's class has no types
    """`TorchConfig` with a store that listens on the address by which the cluster knows rank 0's node."""

    @property
    def backend_cls(self) -> type["_NodeAddressBackend"]:
        """Return the backend class for Ray Train."""
        return _NodeAddressBackend


class _NodeAddressBackend(_TorchBackend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: NodeAddressConfig) -> None:
        """Create a process group of all workers."""
        timeout = timedelta(seconds=backend_config.timeout_s)
        address, port = worker_group.execute_single(0, open_store, timeout)
        worker_group.execute(_set_torch_distributed_env_vars)
        size = len(worker_group)
        ray.get(
            [
                worker_group.execute_single_async(
                    rank, join, backend_config.backend, address, port, rank, size, timeout
                )
                for rank in range(size)
            ]
        )


def open_store(timeout: timedelta) -> tuple[str, int]:
    """Open the store in rank 0's process and return its address and port."""
    global _store
    address = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:
        # Behind NAT, no interface of the node has the address by which the cluster knows it.
        listener = socket.create_server(("", 0), family=family)
    port = int(listener.getsockname()[1])
    _store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listener.detach(),
    )
    return address, port


def join(backend: str, address: str, port: int, rank: int, size: int, timeout: timedelta) -> None:
    """Join the process group as one rank."""
    if address.startswith("127.") or address == "::1":
        # By default, collectives connect over the address to which the host name resolves.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, _loopback())
    store = _store if rank == 0 else TCPStore(address, port, timeout=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def _loopback() -> str:
    # `lo` on Linux, `lo0` on macOS.
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
