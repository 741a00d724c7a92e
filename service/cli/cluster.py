"""`dasl cluster`."""

from __future__ import annotations

import typer

from service.cli.output import AsJson, plain, print_facts, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(cluster)


def cluster(as_json: AsJson = False) -> None:
    """Show nodes, CPUs and GPUs, used and free, and the queue."""
    from service.client import Client

    with Client() as client:
        answer = plain(client.cluster())
    if as_json:
        print_json(answer)
        return
    nodes = answer.pop("nodes", None) or []
    print_facts((name.replace("_", " "), _short(value)) for name, value in answer.items())
    if nodes:
        print()
        columns = list(nodes[0])
        rows = [[_short(node.get(column)) for column in columns] for node in nodes]
        print_table([column.upper() for column in columns], rows)


def _short(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(str(_short(item)) for item in value)
    return value
