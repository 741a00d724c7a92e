"""The command `dasl doctor`."""

from __future__ import annotations

import typer

from service.cli import console

app = typer.Typer()


@app.command()
def doctor() -> None:
    """Check this installation, its files and the server. Exit code 1 if a check fails."""
    from service.doctor import installation, local_storage, ray, server

    findings = []
    for section in (installation, local_storage, ray, server):
        for finding in section.run_checks():
            findings.append(finding)
            if not console.as_json():
                console.print_line(f"{finding.state:<4}  {finding.name:<19} {finding.message}")
                if finding.remedy:
                    console.print_line(f"{'':26}{finding.remedy}")
    num_failed = sum(finding.state == "fail" for finding in findings)
    if console.as_json():
        console.print_json(
            {"ok": not num_failed, "checks": [finding.as_dict() for finding in findings]}
        )
    elif num_failed:
        console.print_line(f"\n{num_failed} of {len(findings)} checks failed.")
    if num_failed:
        raise typer.Exit(1)
