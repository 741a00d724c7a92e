"""The nodes of a cluster, as the executor reports them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A live machine of the cluster; CPUs and GPUs are the executor's logical ones."""

    id: str
    address: str
    total_cpus: float
    total_gpus: float
    used_cpus: float
    used_gpus: float


@dataclass(frozen=True)
class Cluster:
    """All live nodes; their usage may lag some seconds behind."""

    nodes: tuple[Node, ...]
    version: str | None = None
    """Version of the executor, if known."""
    tested: bool | None = None
    """Whether DASL is tested with this version."""

    @property
    def total_cpus(self) -> float:
        """CPUs of all nodes."""
        return sum(node.total_cpus for node in self.nodes)

    @property
    def total_gpus(self) -> float:
        """GPUs of all nodes."""
        return sum(node.total_gpus for node in self.nodes)

    @property
    def used_cpus(self) -> float:
        """CPUs in use on all nodes."""
        return sum(node.used_cpus for node in self.nodes)

    @property
    def used_gpus(self) -> float:
        """GPUs in use on all nodes."""
        return sum(node.used_gpus for node in self.nodes)
