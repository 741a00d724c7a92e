"""The command tree, and the conversion of errors to messages and exit codes."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from dasl_core.outputs import OutputExists
from service.cli import (
    accounts,
    audit,
    cache,
    catalog,
    cluster,
    compare,
    console,
    datasets,
    doctor,
    experiments,
    export,
    files,
    init,
    jobs,
    login,
    models,
    prepare,
    preview,
    server,
    show,
    storage,
    train,
    verify,
    webhooks,
)
from service.client.errors import DaslError


class Commands(TyperGroup):
    """Command group that reports expected errors as one message, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; expected errors end it with exit code 1."""
        # A character that the terminal or pipe cannot encode becomes `?` instead of an exception.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        try:
            return super().invoke(ctx)
        except (DaslError, OutputExists) as error:
            console.note(f"Error: {error}")
            raise typer.Exit(1) from error
        except typer.BadParameter as error:
            # Of pydantic, with which typer checks choices.
            error.message = error.message.removeprefix("Value error, ")
            raise
        except BrokenPipeError:
            raise  # `dasl logs JOB | head`: typer exits quietly
        except UnicodeEncodeError as error:  # an option that is not UTF-8
            console.note(f"Error: {ascii(error.object)[:200]} is not UTF-8")
            raise typer.Exit(2) from error
        except OSError as error:
            path = f"{error.filename}: " if error.filename else ""
            console.note(f"Error: {path}{error.strerror or error}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            console.note("Interrupted.")
            raise typer.Exit(130) from error


app = typer.Typer(
    name="dasl",
    cls=Commands,
    help="Self-supervised pretraining as a service. `dasl serve` starts the service on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of `dasl --help`, which has groups of commands last.
modules = (
    *(server, jobs, show, compare, files, storage, cluster, login, audit),
    *(doctor, catalog, init, cache, prepare, train, preview, export, models, verify),
)
groups = (datasets.app, experiments.app, accounts.tenants, accounts.users, accounts.tokens)
for commands in (*(module.app for module in modules), server.database, *groups, webhooks.app):
    app.add_typer(commands)


def _add_json(commands: typer.Typer, without: Sequence[object]) -> None:
    """Add the option `--json` to the commands that print a result, also to those of subgroups."""
    for command in commands.registered_commands:
        if command.callback is not None and command.callback not in without:
            command.callback = console.with_json(command.callback)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _add_json(group.typer_instance, without)


_local: Sequence[object] = (init.init, train.train, preview.preview, verify.verify)
_add_json(app, without=[server.serve, server.schema, cluster.drain, cluster.undrain, *_local])
