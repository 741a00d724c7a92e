"""Output of commands: tables and facts for people, JSON for programs, errors on stderr."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dasl_core.text import formula_safe
from service.cli.formats import clean, plain

if TYPE_CHECKING:
    from pydantic import BaseModel

    from service.wire.jobs import AdviceView

AnyRecord = TypeVar("AnyRecord", bound="BaseModel")
Columns = Mapping[str, Callable[[AnyRecord], object]]
"""Headers of a table, each with the function that returns the value of a record."""

AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]

_as_json = ContextVar("_as_json", default=False)


def as_json() -> bool:
    """Whether the command that runs was called with `--json`."""
    return _as_json.get()


def with_json(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--json` to the function of a command; `as_json` reads it."""

    @wraps(function)
    def command(*, as_json: bool, **options: Any) -> None:
        token = _as_json.set(as_json)
        try:
            function(**options)
        finally:
            _as_json.reset(token)

    option = typer.Option("--json", help="Print JSON instead of text.")
    parameter = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )
    # typer reads the options from the signature.
    signature = inspect.signature(function, eval_str=True)
    parameters = [*signature.parameters.values(), parameter]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def print_line(text: str = "") -> None:
    """Print a line on stdout."""
    print(clean(text), flush=True)


def note(text: str) -> None:
    """Print a remark on stderr, so that it is not part of piped output."""
    print(clean(text), file=sys.stderr, flush=True)


def hint(text: str) -> None:
    """Print a remark for a person on stderr; with `--json`, nothing."""
    if not as_json():
        note(text)


def note_warnings(warnings: Iterable[str]) -> None:
    """Print the warnings of an answer on stderr."""
    for warning in warnings:
        note(f"Warning: {warning}")


def note_advice(advice: Iterable[AdviceView]) -> None:
    """Print the advice of an answer on stderr, with the settings as `--set` takes them."""
    for each in advice:
        settings = " ".join(f"--set {field}={value}" for field, value in each.settings.items())
        note(f"Advice: {each.field}: {each.reason}" + (f" {settings}" if settings else ""))


def fail(text: str) -> typer.Exit:
    """Print an error and return the exception to raise, for exit code 1."""
    note(f"Error: {text}")
    return typer.Exit(1)


@contextmanager
def needs_extra(command: str, extra: str, extras_to_install: str) -> Iterator[None]:
    """Turn a failed import into an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        # A missing module of our own is a bug, so it keeps its traceback.
        if (error.name or "").partition(".")[0] in {"dasl_core", "service", "workers"}:
            raise
        raise fail(
            f"{command} needs the {extra} extra ({error.name} is missing); "
            f'in a checkout of DASL: pip install ".[{extras_to_install}]"'
        ) from error


def core_extra(command: str) -> AbstractContextManager[None]:
    """Return a context for imports of the training code."""
    return needs_extra(f"`dasl {command}`", "core", "core")


def server_extra() -> AbstractContextManager[None]:
    """Return a context for imports of the service's code."""
    return needs_extra("This command", "server", "server,training")


def print_json(value: Any) -> None:
    """Print a JSON document in ASCII, which is safe in every locale and on every terminal."""
    print(json.dumps(value, indent=2, default=plain), flush=True)


def print_if_json(value: Any) -> bool:
    """Print a JSON document if the command was called with `--json`, and return whether it was."""
    if as_json():
        print_json(value)
    return as_json()


def print_json_line(value: Any) -> None:
    """Print one line of a stream of JSON documents."""
    print(json.dumps(value, default=plain), flush=True)


def print_result(value: BaseModel | dict[str, Any], text: str) -> None:
    """Print the result of a command: a sentence, or the record itself as JSON."""
    if not print_if_json(value):
        print_line(text)


def print_record(record: BaseModel, facts: Iterable[tuple[str, object]]) -> None:
    """Print a record as `name  value` lines, or itself as JSON."""
    if not print_if_json(record):
        print_facts(facts)


def print_secret(record: BaseModel | dict[str, Any], secret: str, remark: str) -> None:
    """Print a secret that is shown once, with a remark on stderr, or the record with it as JSON."""
    if not print_if_json(record):
        print_line(secret)
        note(remark)


def columns(*fields: str, **headed: str) -> dict[str, Callable[[Any], object]]:
    """Return columns of fields as they are; that of `last_login_at` has the header `LAST LOGIN`.

    Args:
        headed: fields by headers that differ from their names.
    """
    named = {_label(field).upper(): field for field in fields} | headed
    return {header: attrgetter(field) for header, field in named.items()}


def facts(record: BaseModel, *fields: str) -> list[tuple[str, object]]:
    """Return fields as they are for `print_facts`; `last_login_at` is named `last login`."""
    return [(_label(field), getattr(record, field)) for field in fields]


def _label(field: str) -> str:
    return field.removesuffix("_at").replace("_", " ")


def print_records(
    records: Iterable[AnyRecord], columns: Columns[AnyRecord], as_csv: bool = False
) -> None:
    """Print records as a table, as CSV, or as a JSON list."""
    if as_json():
        print_json(list(records))
        return
    rows = [[cell(record) for cell in columns.values()] for record in records]
    (print_csv if as_csv else print_table)(list(columns), rows)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns without truncation, so that output can be filtered and copied."""
    cells = [[clean(_cell(value)).replace("\n", " ") for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    for row in [list(headers), *cells]:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def print_csv(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as CSV; a value that is not known is an empty field."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(_csv_cell, headers))
    for row in rows:
        writer.writerow(["" if value is None else _csv_cell(value) for value in row])


def _csv_cell(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return formula_safe(clean(value)) if isinstance(value, str) else value


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print `name  value` lines, without those whose value is None."""
    lines = [(name, value) for name, value in facts if value is not None and value != ""]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        print_line(f"{name.ljust(width)}  {_cell(value)}")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return str(value)
