"""Input of commands: the server, ids and names, and spec files with `--set`.

Everything that can be checked on this machine is checked before a request is sent. The checks raise
typer.BadParameter, for exit code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from service.client import Client, InvalidSpec


def connect(patience: float = 1.0) -> Client:
    """Return a client of the configured server.

    Args:
        patience: seconds to retry. Shorter than the SDK's default, because a person is waiting.
    """
    from service.client import Client

    return Client(patience=patience)


def confirm_deletion(what: str, yes: bool) -> None:
    """Ask on the terminal, unless `--yes` is set; without a terminal, require it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask for confirmation; add --yes")
    typer.confirm(f"Delete {what}?", abort=True, err=True)


def id_of_job(client: Client, reference: str) -> str:
    """Return the id of the job that an argument denotes: an id or its beginning, a name, or `last`.

    Commands that change a job send its id, because a name may denote another job a moment later.
    """
    return reference if _is_id(reference, "job_") else client.jobs.get(reference).id


def id_of_experiment(client: Client, reference: str) -> str:
    """Return the id of the experiment that an argument denotes, as `id_of_job`."""
    return reference if _is_id(reference, "exp_") else client.experiments.get(reference).id


def _is_id(reference: str, prefix: str) -> bool:
    return reference.startswith(prefix) and len(reference) == 30


def id_or_name(value: str) -> str:
    """Check an argument that must be an id or a name."""
    if "/" in value:
        raise typer.BadParameter(f"{value!r} is not an id or a name")
    return tenant_name(value)


def ids_or_names(values: list[str]) -> list[str]:
    """Check arguments that must be ids or names."""
    return [id_or_name(value) for value in values]


def tenant_name(value: str) -> str:
    """Check an argument that names a tenant, which may have a slash."""
    if value.strip() in {"", ".", ".."}:
        raise typer.BadParameter(f"{value!r} is not an id or a name")
    return utf8(value)


def id_argument(metavar: str, help: str) -> Any:
    """Return the argument of a command that is an id or a name."""
    return typer.Argument(metavar=metavar, callback=id_or_name, help=help)


def file_option(metavar: str, help: str) -> Any:
    """Return an option that is a file to read."""
    return typer.Option(metavar=metavar, exists=True, dir_okay=False, help=help)


def set_option(help: str) -> Any:
    """Return the option `--set`, which can be repeated."""
    return typer.Option(
        "--set", metavar="FIELD=VALUE", default_factory=list, show_default=False, help=help
    )


def text_option(help: str, *names: str) -> Any:
    """Return an option for a text that is sent, so that it must be UTF-8."""
    return typer.Option(*names, callback=optional_utf8, help=help)


def output_file(metavar: str, help: str) -> Any:
    """Return the option `-o` of a command that writes a file."""
    return typer.Option("--output", "-o", metavar=metavar, dir_okay=False, help=help)


def output_folder(help: str) -> Any:
    """Return the option `-o` of a command that writes a folder."""
    return typer.Option("--output", "-o", metavar="DIR", file_okay=False, help=help)


Force = Annotated[
    bool,
    typer.Option("--force", help="Replace files of another content, or write among other files."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JobId = Annotated[
    str,
    id_argument("JOB", "Id of the job or its beginning, its name, or `last` for your newest job."),
]
Best = Annotated[
    bool, typer.Option("--best", help="Of a job, its best checkpoint by checkpoints.best_by.")
]
SpecFile = Annotated[
    Path,
    typer.Argument(
        metavar="SPEC.yaml", help="YAML or JSON file with a spec.", exists=True, dir_okay=False
    ),
]
Overrides = Annotated[
    list[str],
    set_option(
        "Change one field, such as method.temperature=0.1. The value is read as YAML. Can be repeated."
    ),
]


def existing(location: str | None) -> str | None:
    """Check an option that names images, which must exist if they are on this machine."""
    from dasl_core.spec.source import is_missing

    if location is not None and is_missing(location):
        raise typer.BadParameter(f"{location} does not exist")
    return location


def images_option(help: str) -> Any:
    """Return an option that names images on this machine, or at a URI."""
    return typer.Option(metavar="LOCATION", callback=existing, help=help)


LocalImages = Annotated[
    str | None,
    images_option(
        "Folder of images, or an archive, list or table of them; a path, or a URI such as "
        "s3://BUCKET/FOLDER. Default: `dataset` in the spec, read as a path.",
    ),
]
Split = Annotated[
    str | None, typer.Option(metavar="NAME", help="Use one split of the images only.")
]
LocalImagesToEvaluateOn = Annotated[
    str | None,
    images_option(
        "Images to evaluate on, likewise, so that none of the others is held out. Default: `evaluate.dataset` in the "
        "spec, read as a path, if it is set.",
    ),
]
DownloadFolder = Annotated[
    Path | None, output_folder("Folder to write. Default: a folder named after the id.")
]


def folder(value: str) -> str:
    """Check an argument that must be a folder; an empty one is refused."""
    if not value:
        raise typer.BadParameter("'' is not a folder; use '.' for the current folder")
    return utf8(value)


def utf8(value: str) -> str:
    """Check that a text can be sent as JSON: file names need not be UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        escaped = os.fsencode(value).decode(errors="backslashreplace")
        raise typer.BadParameter(f"{escaped} is not UTF-8 and cannot be sent; rename it") from None
    return value


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were set."""
    return {name: value for name, value in options.items() if value is not None}


def optional_utf8(value: str | None) -> str | None:
    """Check an option that may be missing as `utf8` does."""
    return None if value is None else utf8(value)


def tags(pairs: list[str] | None) -> dict[str, str] | None:
    """Convert the option `--tag`, which can be repeated; None if it was not set."""
    if not pairs:
        return None
    split = {pair: utf8(pair).partition(":") for pair in pairs}
    for pair, (key, _, value) in split.items():
        if not key or not value:
            raise typer.BadParameter(f"--tag {pair}: expected KEY:VALUE, such as team:vision")
    return {key: value for key, _, value in split.values()}


def dataset_name(name: str | None, path: str) -> str:
    """Return the name of a new data set: the one given, or else the name of its folder."""
    from pydantic import TypeAdapter, ValidationError

    from dasl_core.spec import field_problems
    from dasl_core.spec.fields import Name

    dataset = folder_name(path) if name is None else utf8(name)
    try:
        return TypeAdapter(Name).validate_python(dataset)
    except ValidationError as error:
        (problem,) = field_problems(error)
        if name is None:
            raise typer.BadParameter(
                f"the folder's name {dataset!r} cannot be used for the data set; choose another one "
                f"with --name: {problem.expected}"
            ) from None
        raise typer.BadParameter(f"--name {dataset!r}: expected {problem.expected}") from None


def folder_name(path: str) -> str:
    """Return the name of a folder, also for `..` and for a path with a slash at its end."""
    if "://" in path:
        return os.path.basename(path.rstrip("/"))
    return os.path.basename(os.path.abspath(os.path.expanduser(path)))


def with_overrides(content: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Apply the values of `--set`."""
    from dasl_core.spec import apply_overrides

    try:
        return apply_overrides(content, overrides)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def invalid_spec(name: object, problems: Iterable[object]) -> InvalidSpec:
    """Return an error with a line for each problem of a spec."""
    from service.client.errors import InvalidSpec

    return InvalidSpec("\n".join([f"{name} is not a valid spec", *(f"  {p}" for p in problems)]))


def read_spec(path: Path | None, overrides: list[str]) -> dict[str, Any]:
    """Read a spec file, if there is one, and apply the overrides.

    Raises:
        InvalidSpec: the file cannot be read, or JobSpec refuses its content; one line per field.
    """
    from pydantic import ValidationError

    from dasl_core.spec import JobSpec, field_problems
    from service.client.errors import InvalidSpec
    from service.client.specs import spec_body

    content = {} if path is None else spec_body(path)
    spec = with_overrides(content, overrides)
    if "variants" in content or {"spec", "seeds"} <= content.keys():
        raise InvalidSpec(
            f"This is an experiment. Validate it with: dasl experiments validate {path}   "
            f"Submit it with: dasl experiments submit {path}"
        )
    try:
        JobSpec.model_validate(spec)
    except ValidationError as error:
        raise invalid_spec(path or "This", field_problems(error, JobSpec)) from error
    return spec
