"""Write the tables of docs/spec.md from the models in `dasl_core.spec`.

    python -m tools.spec_tables           # update the page
    python -m tools.spec_tables --check   # exit with 1 if the page is out of date

The page marks each generated block with `<!-- generated: NAME -->` and `<!-- end -->`. Everything else on
it is written by hand. `BLOCKS` lists the names.
"""

import argparse
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dasl_core.spec import METHODS, JobSpec, resolve
from dasl_core.spec.resolve.train import BASE_LR, WEIGHT_DECAY
from tools.authors_settings import (
    AUTHORS,
    COMMON_DIFFERENCES,
    DATASETS,
    AuthorsOfMethod,
    setting_of,
    setup_of,
)

PAGE = Path(__file__).parent.parent / "docs" / "spec.md"
GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
WIDTH = 112


class Row(NamedTuple):
    """One field of the spec, by its dotted name."""

    name: str
    default: str
    allowed: str
    description: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Update or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/spec.md.")
    parser.add_argument("--check", action="store_true", help="only compare, and write nothing")
    options = parser.parse_args(arguments)
    before = PAGE.read_text(encoding="utf-8")
    after = render(before)
    if before == after:
        return 0
    if options.check:
        print(f"{PAGE.name} is out of date; run: python -m tools.spec_tables", file=sys.stderr)
        return 1
    PAGE.write_text(after, encoding="utf-8")
    return 0


def render(page: str) -> str:
    """Return the page with every generated block replaced; a ValueError if it lacks one, or has one not in `BLOCKS`."""
    names = [match[2] for match in GENERATED.finditer(page)]
    if sorted(names) != sorted(BLOCKS):
        raise ValueError(f"the page has the blocks {names}; expected each of {list(BLOCKS)} once")
    return GENERATED.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n\n{match[3]}", page)


def rows_of(model: type[BaseModel], names: Sequence[str], prefix: str = "") -> Iterator[Row]:
    """The rows of these fields, each followed by the fields of the models that it accepts.

    A field that always holds the same model, such as `train.optimizer`, has no row of its own.
    """
    schema = model.model_json_schema()
    for name in names:
        field = model.model_fields[name]
        types = {field.annotation, *get_args(field.annotation)}
        models = [kind for kind in types if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if models != [field.annotation]:
            default = field.get_default(call_default_factory=True)
            yield Row(
                prefix + name,
                "required" if default is PydanticUndefined else f"`{_json(default)}`",
                allowed_values(schema["properties"][name]),
                schema["properties"][name].get("description", ""),
            )
        for inner in models:
            yield from rows_of(inner, list(inner.model_fields), f"{prefix}{name}.")


def allowed_values(schema: Mapping[str, Any]) -> str:
    """What a JSON Schema accepts, as a short phrase in Markdown."""
    if "anyOf" in schema:
        return "; ".join(allowed_values(option) for option in schema["anyOf"])
    if "const" in schema:
        return _code(schema["const"])
    if "enum" in schema:
        return ", ".join(map(_code, schema["enum"]))
    if "$ref" in schema:
        return "the fields below"
    kind = schema["type"]
    if kind == "null":
        return "`null`"
    if kind == "boolean":
        return "`true`, `false`"
    if kind in ("integer", "number"):
        return f"{kind}{_range(schema)}"
    if kind == "string":
        return f"text{_count(schema, 'Length', 'characters')}"
    if kind == "object":
        return f"mapping{_count(schema, 'Properties', 'entries')}"
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])} {schema['prefixItems'][0]['type']}s"
    return f"list{_count(schema, 'Items', 'items')}, each {allowed_values(schema['items'])}"


def _range(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" {_number(low)} to {_number(high)}"
    if low is not None and below is not None:
        return f" {_number(low)} to below {_number(below)}"
    bounds = (("above", above), ("at least", low), ("at most", high), ("below", below))
    given = [f"{word} {_number(bound)}" for word, bound in bounds if bound is not None]
    return f" {', '.join(given)}" if given else ""


def _count(schema: Mapping[str, Any], of: str, unit: str) -> str:
    least, most = schema.get(f"min{of}"), schema.get(f"max{of}")
    if least is not None and most is not None:
        return f" of {least} to {most} {unit}"
    return "" if most is None else f" of at most {most} {unit}"


def _number(value: float) -> str:
    if value == 2**63 - 1:
        return "2^63 - 1"
    if value != int(value):
        return format(value, "g")
    return format(int(value), "," if abs(value) >= 10_000 else "d")


def _code(value: Any) -> str:
    return f"`{value if isinstance(value, str) else _json(value)}`"


def _json(value: Any) -> str:
    return json.dumps(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, *rows]
    text = ["| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in lines]
    return "\n".join([text[0], "|" + "---|" * len(headings), *text[1:]])


def _field_table(rows: Iterator[Row]) -> str:
    cells = ((f"`{row.name}`", *row[1:]) for row in rows)
    return _table(("Field", "Default", "Allowed", "Description"), cells)


def _job_table() -> str:
    simple = [name for name in JobSpec.model_fields if name not in SECTIONS and name != "method"]
    return _field_table(rows_of(JobSpec, simple))


def _section_table(section: str) -> str:
    return _field_table(rows_of(JobSpec, [section]))


def _methods(*, supervised: bool) -> str:
    """A heading, the class's docstring and a table of fields for each method."""
    parts = []
    for name, settings in sorted(METHODS.items()):
        if settings.supervised == supervised:
            paragraphs = inspect.cleandoc(settings.__doc__ or "").split("\n\n")
            text = "\n\n".join(
                textwrap.fill(each, WIDTH, break_long_words=False, break_on_hyphens=False)
                for each in paragraphs
            )
            table = _field_table(rows_of(settings, list(settings.model_fields), "method."))
            parts.append(f"#### `{name}`\n\n{text}\n\n{table}")
    return "\n\n".join(parts)


def _rates() -> str:
    """What rates and decays become with each optimizer; bold where the method's recipe sets it."""
    headings = [f"{what}, `{name}`" for what in ("rate", "decay") for name in BASE_LR]

    def cell(prescribed: Mapping[str, Any], general: Mapping[str, float], name: str) -> str:
        if name not in prescribed:
            return _decimal(general[name])
        value = prescribed[name]
        pair = value if isinstance(value, tuple) else (value,)
        return f"**{' to '.join(map(_decimal, pair))}**"

    return _table(
        ("Method", *headings),
        (
            (
                f"`{name}`",
                *(cell(settings.recipe.lr, BASE_LR, each) for each in BASE_LR),
                *(cell(settings.recipe.weight_decay, WEIGHT_DECAY, each) for each in BASE_LR),
            )
            for name, settings in sorted(METHODS.items())
        ),
    )


def _recipes() -> str:
    """What the recipe of each method sets for views and clipping."""

    def cells(name: str) -> Iterator[str]:
        recipe = METHODS[name].recipe
        yield f"`{name}`"
        yield " to ".join(map(_decimal, recipe.crop_scale))
        yield _decimal(recipe.jitter)
        yield _decimal(recipe.grayscale)
        yield ", ".join(map(_decimal, recipe.blur))
        yield ", ".join(map(_decimal, recipe.solarize))
        clip = "none" if recipe.clip is None else _decimal(recipe.clip)
        yield clip + (", each parameter" if recipe.clip_each else "")

    headings = (
        "Method",
        "`crop_scale`",
        "`jitter`",
        "`grayscale`",
        "`blur`",
        "`solarize`",
        "`clip`",
    )
    return _table(headings, (list(cells(name)) for name in sorted(METHODS)))


def _authors() -> str:
    """Both recipes of each method whose authors publish settings, and what is not reproduced."""
    parts = []
    for name, authors in sorted(AUTHORS.items()):
        text = f"{authors.paper}. Code:\n<{authors.code}>."
        parts += [f"#### `{name}`: both recipes", text, _both(name, authors)]
        if authors.differences:
            parts.append(_differences(authors.differences))
    return "\n\n".join(parts)


def _differences(differences: Iterable[Mapping[str, str]]) -> str:
    rows = ((each["authors"], each["here"]) for each in differences)
    return _table(("Not reproduced: the authors", "Here"), rows)


def _both(method: str, authors: AuthorsOfMethod) -> str:
    """The settings of `small`, with its own batch, and of `authors` in each setup of the authors."""
    resolved = {}
    for setup, parts in authors.setups.items():
        facts = DATASETS[parts["dataset"]]
        spec = setup_of(method, setup, "small")
        train = spec.train.model_copy(update={"batch_size": "auto"})
        resolved[setup] = (
            resolve(spec.model_copy(update={"train": train}), facts),
            resolve(setup_of(method, setup, "authors"), facts),
        )

    def cell(name: str, recipe: int) -> str:
        return _by_setup(
            {setup: setting_of(both[recipe], name) for setup, both in resolved.items()}
        )

    rows = (
        (f"`{name}`", cell(name, 0), cell(name, 1), setting.source)
        for name, setting in authors.settings.items()
    )
    return _table(("Setting", "`small`", "`authors`", "Source"), rows)


def _by_setup(values: Mapping[str, Any]) -> str:
    """One value if it is that of all setups; else each with its setups."""
    setups: dict[str, list[str]] = {}
    for setup, value in values.items():
        setups.setdefault(_plain(value), []).append(setup)
    if len(setups) == 1:
        return next(iter(setups))
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in setups.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, float):
        return _decimal(value)
    return value if isinstance(value, str) else _json(value)


def _decimal(value: float) -> str:
    """A number without an exponent: 0.0000015."""
    return f"{value:.10f}".rstrip("0").rstrip(".")


SECTIONS = (
    "backbone",
    "augment",
    "dar",
    "sec",
    "regularizers",
    "train",
    "evaluate",
    "checkpoints",
    "resources",
    "track",
)
BLOCKS: dict[str, Callable[[], str]] = {
    "job": _job_table,
    "self_supervised_methods": partial(_methods, supervised=False),
    "supervised_methods": partial(_methods, supervised=True),
    **{section: partial(_section_table, section) for section in SECTIONS},
    "rates": _rates,
    "recipes": _recipes,
    "authors": _authors,
    "common_differences": partial(_differences, COMMON_DIFFERENCES),
}


if __name__ == "__main__":
    raise SystemExit(main())
