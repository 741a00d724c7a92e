"""The command `dasl`, in the process of the test."""

import json
from functools import cache
from typing import Any

from typer import testing
from typer.testing import CliRunner, Result

from service.cli.app import app

# Otherwise Typer builds all hundred commands again for each call.
testing._get_command = cache(testing._get_command)  # type: ignore[attr-defined]


def run(
    *arguments: object, code: int = 0, stdin: str | None = None, env: dict[str, str] | None = None
) -> Result:
    """Run a command, which must end with the exit code."""
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, input=stdin, env=env)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result


def run_json(*arguments: object, code: int = 0) -> Any:
    """Run a command with `--json`, and return the document that it prints."""
    return json.loads(run(*arguments, "--json", code=code).stdout)
