"""`dasl cluster`."""

from __future__ import annotations

import typer

from service.cli.connection import connect
from service.cli.output import AsJson, plain, print_facts, print_json, print_table, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(cluster)


def cluster(as_json: AsJson = False) -> None:
    """Show nodes, CPUs and GPUs, used and free, and the queue."""
    with connect() as client:
        found = client.cluster()
    if as_json:
        print_json(plain(found))
        return
    state = "not seen yet" if found.at is None else "alive" if found.alive else "does not answer"
    print_facts(
        [
            ("cluster", state),
            ("seen", found.at),
            ("CPUs", _use(found.total_cpus, found.allocated_cpus, found.used_cpus)),
            ("GPUs", _use(found.total_gpus, found.allocated_gpus, found.used_gpus)),
            ("waiting", f"{len(found.queue) if found.queued is None else found.queued} jobs"),
        ]
    )
    if found.nodes:
        say()
        rows = [
            [
                node.address,
                f"{node.used_cpus:g}/{node.total_cpus:g}",
                f"{node.used_gpus:g}/{node.total_gpus:g}",
            ]
            for node in found.nodes
        ]
        print_table(["NODE", "CPUS USED", "GPUS USED"], rows)
    if found.queue:
        say()
        waiting = [
            [job.priority, job.id, job.name, job.created_at, job.reason or None]
            for job in found.queue
        ]
        print_table(["PRIORITY", "WAITING", "NAME", "SINCE", "REASON"], waiting)


def _use(total: float, allocated: float | None, used: float) -> str:
    """Workers sit where they are placed some seconds after their job was given its room."""
    given = "" if allocated is None else f"{allocated:g} given to jobs, "  # An older server.
    return f"{total:g}, of which {given}{used:g} used by workers"
