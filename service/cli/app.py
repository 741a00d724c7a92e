"""The command tree, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from service.cli import (
    audit,
    cluster,
    datasets,
    doctor,
    export,
    files,
    jobs,
    server,
    show,
    tokens,
    train,
)
from service.cli.output import note
from service.client.errors import DaslError


class Commands(TyperGroup):
    """A group whose commands fail with a sentence, not with a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors that are no bug end with exit code 1."""
        # A terminal or pipe that cannot show a character gets a `?`, not a crash.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        try:
            return super().invoke(ctx)
        except DaslError as error:
            note(f"Error: {error}")
            raise typer.Exit(1) from error
        except BrokenPipeError:
            raise  # `dasl logs JOB | head`: typer ends quietly
        except UnicodeEncodeError as error:  # an option of bytes that are not UTF-8
            note(f"Error: {ascii(error.object)[:200]} holds bytes that are not UTF-8")
            raise typer.Exit(2) from error
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            note(f"Error: {place}{error.strerror or error}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            note("Interrupted.")
            raise typer.Exit(130) from error


app = typer.Typer(
    name="dasl",
    cls=Commands,
    help="Self-supervised pretraining as a service. `dasl serve` starts one on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
server.register(app)
datasets.register(app)
jobs.register(app)
show.register(app)
files.register(app)
cluster.register(app)
tokens.register(app)
audit.register(app)
doctor.register(app)
train.register(app)
export.register(app)
