"""Messages to users about jobs that wait for room or for machines."""

from collections.abc import Sequence

from service.scheduling.nodes import Cluster, Node
from service.scheduling.packing import BYTES_PER_GB, Demand, Room, Worker, amount


def too_little_room(demand: Demand, cluster: Cluster, nodes: Sequence[Node], held: Room) -> str:
    """Explain that running jobs leave too little room.

    Args:
        nodes: the nodes of the cluster without the resources that other programs use.
        held: the resources that jobs hold.
    """
    in_use = f"{held.cpus:g} of {cluster.total_cpus:g} CPUs"
    if cluster.total_gpus:
        in_use += f" and {held.gpus:g} of {cluster.total_gpus:g} GPUs"
    message = f"Waiting for {demand}: {in_use} are in use"
    cpus, gpus = sum(node.total_cpus for node in nodes), sum(node.total_gpus for node in nodes)
    others_cpus, others_gpus = cluster.total_cpus - cpus, cluster.total_gpus - gpus
    if others_cpus or others_gpus:
        message += f", and other programs use {amount(others_cpus, others_gpus)}"
    if demand.worker.memory:
        all_memory = sum(node.total_memory for node in cluster.nodes)
        reserved, total = (f"{size / BYTES_PER_GB:.6g}" for size in (held.memory, all_memory))
        message += f"; jobs reserve {reserved} of {total} GB of memory"
    allowed = sum(demand.choice.allows(node) and not node.drained for node in nodes)
    if allowed < len(nodes):
        message += f"; the job may use {allowed} of {len(nodes)} nodes"
    enough_in_total = demand.cpus <= cpus - held.cpus and demand.gpus <= gpus - held.gpus
    return f"{message}, and no node may have enough of the rest" if enough_in_total else message


def too_few_machines(demand: Demand, cluster: Cluster) -> str:
    """Explain why the job would not fit on an empty cluster, and what to do."""
    usable = [node for node in cluster.nodes if not node.drained]
    if not usable:
        return "Waiting for more machines: all nodes are drained, and get no new workers"
    allowed = [node for node in usable if demand.choice.allows(node)]
    if (none := demand.choice.why_no_node(usable)) is not None:
        message = f"Waiting for more machines: resources.{none[0]}: {none[1]}"
    elif (larger := _why_too_large(demand.worker, allowed)) is not None:
        message = f"Waiting for more machines: {larger}"
    else:
        message = (
            f"Waiting for more machines: {demand.workers} workers with {demand} in all do not fit "
            f"on {'one of ' if demand.choice.same_node else ''}{len(usable)} node{'' if len(usable) == 1 else 's'} with "
            f"{sum(node.total_cpus for node in usable):g} CPUs and "
            f"{sum(node.total_gpus for node in usable):g} GPUs in all"
        )
        if demand.worker.memory:
            memory = sum(node.total_memory for node in usable) / BYTES_PER_GB
            message += f" and {memory:.6g} GB of memory"
        if len(allowed) < len(usable):
            message += f", of which the job may use {len(allowed)}"
    drained = len(cluster.nodes) - len(usable)
    if drained:
        message += f" ({drained} more {'is' if drained == 1 else 'are'} drained)"
    return message


def _why_too_large(worker: Worker, nodes: Sequence[Node]) -> str | None:
    """Explain why one worker fits on no node, and what to do; `None` if one has enough CPUs and GPUs."""
    if worker.gpus and not any(node.total_gpus >= worker.gpus for node in nodes):
        return (
            "each worker needs a GPU, and no node that the job may use has one. It starts once there are GPUs; to "
            "train on CPUs, clone it with resources.gpus_per_worker: 0"
        )
    most = max(node.total_cpus for node in nodes if node.total_gpus >= worker.gpus)
    if worker.cpus <= most:
        return None
    remedy = f"; to train on what there is, clone it with resources.cpus_per_worker: {int(most)}"
    return (
        f"each worker needs {worker.cpus} CPUs on one node, and the largest that the job may use has {most:g}. It "
        f"starts once there is a larger one{remedy if most >= 1 else ''}"
    )
