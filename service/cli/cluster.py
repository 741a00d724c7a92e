"""The commands `dasl cluster`, `dasl drain` and `dasl undrain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import console
from service.cli.inputs import connect

if TYPE_CHECKING:
    from service.client.models import Cluster

app = typer.Typer()


@app.command()
def cluster() -> None:
    """Show the cluster's nodes, CPUs and GPUs, and the queue."""
    with connect() as client:
        snapshot = client.cluster()
    if console.print_if_json(snapshot):
        return
    if snapshot.at is None:
        state = "not seen yet"
    elif snapshot.rest is not None:
        is_idle = snapshot.rest == "idle"
        state = "idle: Ray starts with the next job" if is_idle else "Ray is starting"
    else:
        state = "alive" if snapshot.alive else "does not answer"
    console.print_facts(
        [
            ("cluster", state),
            ("seen", snapshot.at),
            ("CPUs", _usage(snapshot.total_cpus, snapshot.allocated_cpus, snapshot.used_cpus)),
            ("GPUs", _usage(snapshot.total_gpus, snapshot.allocated_gpus, snapshot.used_gpus)),
            ("Ray", _ray(snapshot)),
            ("API since", snapshot.api_started_at),
            ("dispatcher since", snapshot.dispatcher_started_at),
            ("waiting", f"{snapshot.queued} {'job' if snapshot.queued == 1 else 'jobs'}"),
        ]
    )
    if snapshot.nodes:
        console.print_line()
        nodes = [
            [
                node.address or node.id,
                f"{node.used_cpus:g}/{node.total_cpus:g}",
                f"{node.used_gpus:g}/{node.total_gpus:g}",
                node.gpu_type,
                "drained" if node.drained else None,
            ]
            for node in snapshot.nodes
        ]
        console.print_table(["NODE", "CPUS USED", "GPUS USED", "GPU TYPE", "STATE"], nodes)
    if snapshot.queue:
        console.print_line()
        jobs = [
            [job.priority, job.id, job.name, job.created_at, job.reason or None]
            for job in snapshot.queue
        ]
        console.print_table(["PRIORITY", "WAITING", "NAME", "SINCE", "REASON"], jobs)


NodeArgument = Annotated[
    str | None, typer.Argument(metavar="[NODE]", help="Id, name or address. Default: all nodes.")
]


@app.command()
def drain(
    node: NodeArgument = None,
    save: Annotated[
        bool, typer.Option(help="Let attempts with ranks there save a checkpoint and stop.")
    ] = True,
    reason: Annotated[str, typer.Option(help="Shown to administrators.")] = "",
) -> None:
    """Give a node no new workers; without NODE the whole cluster.

    Jobs that ran there are queued again, and use up no restart.
    """
    with connect() as client:
        client.drain(node, save=save, reason=reason)
        names = [(up.id, up.address, up.name) for up in client.cluster().nodes]
    if node is None or any(node in names_of_node for names_of_node in names):
        console.print_line(f"{'All nodes get' if node is None else f'{node} gets'} no new workers.")
    else:
        console.note(
            f"No node that is up has the id, name or address {node!r}: see `dasl cluster`. One that joins with it "
            f"gets no workers; if that is not meant, run: dasl undrain {node}"
        )


@app.command()
def undrain(node: NodeArgument = None) -> None:
    """End the drain of a node; without NODE that of the whole cluster."""
    with connect() as client:
        drains = client.undrain(node)
    drained = ", ".join(drain.node or "the whole cluster" for drain in drains) or "nothing"
    console.print_line(f"Still drained: {drained}.")


def _ray(snapshot: Cluster) -> str | None:
    if snapshot.ray_version is None:
        return None
    return snapshot.ray_version + (", not tested with DASL" if snapshot.ray_tested is False else "")


def _usage(total: float, allocated: float, used: float) -> str:
    """Describe a resource. Ray places workers some seconds after it is allocated to their job."""
    return f"{total:g} in total, {allocated:g} allocated to jobs, {used:g} used by workers"
