"""Ids, names and folders as people type them, checked before a server is asked."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def known_by(value: str) -> str:
    """An id or a name of something that exists, as an argument.

    Raises typer.BadParameter (exit code 2) for what can be neither.
    """
    if value.strip() in {"", ".", ".."}:
        raise typer.BadParameter(f"{value!r} is not an id")
    return printable(value)


JobId = Annotated[str, typer.Argument(metavar="JOB", callback=known_by, help="Id of a job.")]
"""An argument of commands."""


def folder(value: str) -> str:
    """A folder, as an argument; "" would be this one. Raises typer.BadParameter."""
    if not value:
        raise typer.BadParameter("'' is not a folder; this one is called '.'")
    return printable(value)


def printable(value: str) -> str:
    """A text that can be sent: a name of bytes that are not UTF-8 cannot. Raises typer.BadParameter."""
    try:
        value.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(value).decode(errors="backslashreplace")
        raise typer.BadParameter(f"{shown} is not UTF-8, and cannot be sent: rename it") from None
    return value


def dataset_name(given: str | None, path: str) -> str:
    """The name of a data set: the given one, or that of its folder. Raises typer.BadParameter."""
    from pydantic import TypeAdapter, ValidationError

    from dasl_core.spec import field_problems
    from dasl_core.spec.job import Name

    name = folder_name(path) if given is None else printable(given)
    try:
        return TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        (problem,) = field_problems(error)
        if given is None:
            raise typer.BadParameter(
                f"the folder's own name, {name!r}, cannot be the data set's; give one with --name: "
                f"{problem.expected}"
            ) from None
        raise typer.BadParameter(f"--name {name!r}: expected {problem.expected}") from None


def folder_name(path: str) -> str:
    """What a folder is called, also when it is given as `..` or with a slash at its end."""
    return os.path.basename(os.path.abspath(os.path.expanduser(path)))
