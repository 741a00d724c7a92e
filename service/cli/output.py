"""How commands speak: tables and facts for people, JSON for programs, errors on stderr."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from service.client.models import Record

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def say(text: str = "") -> None:
    """One line for people on stdout."""
    print(clean(text), flush=True)


def note(text: str) -> None:
    """A remark on stderr, where it does not get into what is piped on."""
    print(clean(text), file=sys.stderr, flush=True)


def fail(text: str) -> typer.Exit:
    """Print an error; raise what this returns to end with exit code 1."""
    note(f"Error: {text}")
    return typer.Exit(1)


@contextmanager
def core_extra(command: str) -> Iterator[None]:
    """Around imports of the core's training code: what is not installed is told with its remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"dasl_core", "service", "workers"}:
            raise
        raise fail(
            f"`dasl {command}` needs the core extra ({error.name} is missing): "
            'pip install "dasl[core]"'
        ) from error


def clean(text: str) -> str:
    """`text` without control characters: names and logs come from elsewhere, and could otherwise
    steer the terminal."""
    return "".join(
        char for char in text if char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cf"}
    )


def print_json(value: Any) -> None:
    """A JSON document on stdout, in ASCII: whole in every locale, and harmless to a terminal."""
    print(json.dumps(value, indent=2), flush=True)


def print_json_line(value: Any) -> None:
    """One line of a stream of JSON documents."""
    print(json.dumps(value), flush=True)


def plain(record: Record) -> dict[str, Any]:
    """A record as the API sent it, in JSON's own types."""
    return record.model_dump(mode="json")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns, whole: what is printed here is also cut, grepped and pasted."""
    cells = [[clean(_cell(value)).replace("\n", " ") for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    for row in [list(headers), *cells]:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """`name  value` lines; facts without a value are left out."""
    known = [(name, value) for name, value in facts if value is not None and value != ""]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        say(f"{name.ljust(width)}  {_cell(value)}")


def duration(seconds: float | None) -> str:
    """`42s`, `3m07s`, `2h05m`, `3d04h`."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def size(count: int | None) -> str:
    """`512 B`, `1.5 MB`, in powers of 1000."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def figure(value: float | None, digits: int = 4) -> str:
    """A number with some significant digits, or a dash."""
    return "-" if value is None else f"{value:.{digits}g}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return str(value)
