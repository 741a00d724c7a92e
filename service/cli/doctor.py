"""`dasl doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from service.cli.output import AsJson, print_json, say

if TYPE_CHECKING:
    from service.doctor.finding import Finding


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Check this installation, its files and the server; exit code 1 if something fails."""
    from service.doctor import installation, local_storage, server

    found = []
    for part in (installation, local_storage, server):
        for finding in part.look():
            found.append(finding)
            if not as_json:
                _show(finding)
    failed = sum(finding.state == "fail" for finding in found)
    if as_json:
        print_json({"ok": not failed, "checks": [vars(finding) for finding in found]})
    elif failed:
        say(f"\n{failed} of {len(found)} checks failed.")
    if failed:
        raise typer.Exit(1)


def _show(finding: Finding) -> None:
    say(f"{finding.state:<4}  {finding.name:<19} {finding.said}")
    if finding.todo:
        say(f"{'':26}{finding.todo}")
