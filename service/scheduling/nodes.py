"""The nodes of a cluster, as the executor reports them, and which of them a job may use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dasl_core.spec import Resources

GPU_TYPE_LABEL = "ray.io/accelerator-type"
"""Label of a node's type of GPU; Ray sets it."""


@dataclass(frozen=True)
class Node:
    """A live machine of the cluster; CPUs, GPUs and bytes of memory are the executor's logical ones."""

    id: str
    address: str
    total_cpus: float
    total_gpus: float
    used_cpus: float
    used_gpus: float
    name: str = ""
    total_memory: float = 0.0
    used_memory: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    drained: bool = False
    """Whether it gets no new workers."""
    is_head: bool = False
    """Whether it runs the executor's own services, on which the whole cluster depends."""

    @property
    def gpu_type(self) -> str | None:
        """Type of its GPUs; `None` if unknown or without GPUs."""
        return self.labels.get(GPU_TYPE_LABEL) if self.total_gpus else None

    def is_named(self, names: Collection[str]) -> bool:
        """Whether its id, name or address is among these."""
        return self.id in names or self.address in names or self.name in names


class HeadMemory(NamedTuple):
    """Memory of the machine or container of the head, in bytes."""

    used: float
    total: float


@dataclass(frozen=True)
class Cluster:
    """All live nodes; their usage may be some seconds old."""

    nodes: tuple[Node, ...]
    version: str | None = None
    """Version of the executor, if known."""
    tested: bool | None = None
    """Whether DASL is tested with this version."""
    head_memory: HeadMemory | None = None
    """Measured within the last seconds; `None` if unknown."""

    @property
    def total_cpus(self) -> float:
        return sum(node.total_cpus for node in self.nodes)

    @property
    def total_gpus(self) -> float:
        return sum(node.total_gpus for node in self.nodes)

    @property
    def used_cpus(self) -> float:
        return sum(node.used_cpus for node in self.nodes)

    @property
    def used_gpus(self) -> float:
        return sum(node.used_gpus for node in self.nodes)


class NodeChoice(NamedTuple):
    """Which nodes a job may use."""

    gpu_type: str | None = None
    labels: frozenset[tuple[str, str]] = frozenset()
    excluded: frozenset[str] = frozenset()
    same_node: bool = False

    @classmethod
    def from_resources(cls, resources: Resources) -> NodeChoice:
        """Return the choice of a spec's `resources`."""
        return cls(
            resources.gpu_type,
            frozenset(resources.node_labels.items()),
            frozenset(resources.exclude_nodes),
            resources.same_node,
        )

    def allows(self, node: Node) -> bool:
        """Whether the job's workers may run on a node."""
        return (
            (self.gpu_type is None or node.gpu_type == self.gpu_type)
            and all(node.labels.get(key) == value for key, value in self.labels)
            and not (self.excluded and node.is_named(self.excluded))
        )

    def why_no_node(self, nodes: Sequence[Node]) -> tuple[str, str] | None:
        """Return the field that excludes every node, and the reason; `None` if the job may use a node."""
        if any(self.allows(node) for node in nodes):
            return None
        if self.gpu_type is not None and all(n.gpu_type != self.gpu_type for n in nodes):
            return "gpu_type", f"no node has GPUs of type {self.gpu_type}; {_gpu_types(nodes)}"
        for key, value in sorted(self.labels):
            if all(node.labels.get(key) != value for node in nodes):
                return "node_labels", f"no node has the label {key}={value}"
        if self.excluded and all(node.is_named(self.excluded) for node in nodes):
            return "exclude_nodes", "excludes every node"
        return "node_labels", "no node has the GPU type and all labels, and is not excluded"


ANY_NODE = NodeChoice()


def without_drivers(nodes: Sequence[Node]) -> frozenset[str]:
    """Return the ids of the head and of drained nodes; empty if there is no other node."""
    found = frozenset(node.id for node in nodes if node.is_head or node.drained)
    return found if len(found) < len(nodes) else frozenset()


def with_drains(cluster: Cluster, drained: Collection[str]) -> Cluster:
    """Return a cluster with its drained nodes marked.

    Args:
        drained: ids, names or addresses; `ALL_NODES` is every node.
    """
    if not drained:
        return cluster
    everything = ALL_NODES in drained
    nodes = tuple(
        replace(node, drained=True) if everything or node.is_named(drained) else node
        for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


ALL_NODES = "*"
"""Stands for the whole cluster in place of a node's name."""


def gpu_types(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the number of nodes with each known type of GPU."""
    types = sorted(node.gpu_type for node in nodes if node.gpu_type)
    return {kind: types.count(kind) for kind in dict.fromkeys(types)}


def _gpu_types(nodes: Sequence[Node]) -> str:
    types = gpu_types(nodes)
    if not types:
        return "Ray reports no type of GPU"
    return "the cluster has " + ", ".join(
        f"{kind} ({count} node{'' if count == 1 else 's'})" for kind, count in types.items()
    )
