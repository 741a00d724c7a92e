"""Specs from files, with `--set`, checked on this machine before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

SpecFile = Annotated[
    Path, typer.Argument(metavar="SPEC.yaml", exists=True, dir_okay=False, readable=True)
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        default_factory=list,
        show_default=False,
        help="Change one field, such as method.temperature=0.1; the value is read as YAML. "
        "May be given several times.",
    ),
]


def read_spec(path: Path, overrides: list[str]) -> dict[str, Any]:
    """The spec as it will be sent: the file's content with the overrides.

    Raises typer.BadParameter for an override that is none (exit code 2), and InvalidSpec, with a line
    for each field at fault, for content that JobSpec refuses.
    """
    from pydantic import ValidationError

    from dasl_core.spec import JobSpec, apply_overrides, field_problems, load_spec
    from service.client.errors import InvalidSpec

    try:
        written = load_spec(path)
    except ValueError as error:
        raise InvalidSpec(str(error)) from error
    try:
        spec = apply_overrides(written, overrides)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        JobSpec.model_validate(spec)
    except ValidationError as error:
        lines = [f"  {problem}" for problem in field_problems(error, JobSpec)]
        raise InvalidSpec("\n".join([f"{path} is not a valid spec", *lines])) from error
    return spec
