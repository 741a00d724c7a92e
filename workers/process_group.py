"""Process group of the ranks of an attempt, with its rendezvous on the address of rank 0's node.

With Ray's torch backend, the store of the process group is open on all addresses of the machine, without a
secret, so any process that reaches it could change the addresses that ranks exchange.

Driver and controller also import this module, but only the functions of ranks import torch, which takes two
seconds and 500 MB in each process.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal

import psutil
import ray
import ray.train
from ray.train.backend import Backend, BackendConfig

from workers.placement import set_nodes, this_node

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

# Timeout of torch's collectives; also Ray's default.
TIMEOUT = timedelta(minutes=30)
_LEAVE_SECONDS = 30

# Keeps the store alive for the lifetime of rank 0's process.
_store: TCPStore | None = None


@dataclass
class ProcessGroupConfig(BackendConfig):  # type: ignore[misc]  # Ray's class has no types
    """Configuration for Ray Train: a process group of all ranks, with a backend of torch.distributed."""

    backend: Literal["gloo", "nccl"]

    @property
    def backend_cls(self) -> type[ProcessGroupBackend]:
        """Return the backend class for Ray Train."""
        return ProcessGroupBackend


class ProcessGroupBackend(Backend):  # type: ignore[misc]
    """Forms the process group before training and ends it afterwards."""

    # NCCL needs the GPUs of all ranks of a node.
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: ProcessGroupConfig) -> None:
        """Create a process group of all workers."""
        address, port = worker_group.execute_single(0, open_store)
        worker_group.execute(set_rank_variables)
        worker_group.execute_single(0, set_nodes, worker_group.execute(this_node))
        size = len(worker_group)
        ray.get(
            [
                worker_group.execute_single_async(
                    rank, join, backend_config.backend, address, port, rank, size
                )
                for rank in range(size)
            ]
        )

    def on_shutdown(self, worker_group: Any, backend_config: ProcessGroupConfig) -> None:
        """Destroy the process group, unless a rank does not answer."""
        try:
            ray.get(worker_group.execute_async(leave), timeout=_LEAVE_SECONDS)
        except ray.exceptions.GetTimeoutError:
            logger.warning("the ranks did not leave their process group in %d s", _LEAVE_SECONDS)


def open_store() -> tuple[str, int]:
    """Open the store in rank 0's process and return its address and port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    global _store
    address = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:
        # Behind NAT, no interface of the node has its address in the cluster.
        listener = socket.create_server(("", 0), family=family)
    port = int(listener.getsockname()[1])
    _store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    return address, port


def set_rank_variables() -> None:
    """Set the environment variables that torchrun sets for a rank."""
    context = ray.train.get_context()
    os.environ |= {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "NODE_RANK": str(context.get_node_rank()),
    }


def join(backend: str, address: str, port: int, rank: int, size: int) -> None:
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # By default, gloo uses the address to which the host name resolves, often a loopback address, and NCCL the
    # first interface.
    if (interface := find_interface(ray.util.get_node_ip_address())) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without =, a prefix of names
    store = _store if rank == 0 else TCPStore(address, port, timeout=TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def find_interface(address: str) -> str | None:
    """Find the name of the network interface with an IP address; `None` if there is none.

    Behind NAT, no interface of a node has its address in the cluster.
    """
    target = ip_address(address)
    families = (socket.AF_INET, socket.AF_INET6)
    for name, addresses in psutil.net_if_addrs().items():
        # A link-local IPv6 address ends with its scope: `fe80::1%eth0`.
        found = [entry.address.partition("%")[0] for entry in addresses if entry.family in families]
        if target in map(ip_address, found):
            return name
    return None
