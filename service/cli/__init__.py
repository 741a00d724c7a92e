"""The command `dasl`: a client of the public API, and the way to start the service or a local run.

Modules of this package import what costs time (httpx, pydantic, rich, the service) inside the command
that needs it, so that `dasl --help` and shell completion answer at once.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code: 0 done, 1 failed, 2 wrong usage."""
    from service.cli.app import app

    app(prog_name="dasl")
