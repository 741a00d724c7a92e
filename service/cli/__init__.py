"""The command `dasl`: a client of the REST API, plus commands that start a service or a local run.

Modules of this package import what is slow to import (httpx, pydantic, rich, the service) inside the
command that needs it, so that `dasl --help` and shell completion answer at once.
"""


def main() -> None:
    """Run the command line and exit: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""
    from service.cli.app import app

    app(prog_name="dasl")
