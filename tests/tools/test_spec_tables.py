"""The generated tables of docs/spec.md: up to date, complete, and readable."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dasl_core.spec import METHODS, JobSpec
from tools import spec_tables
from tools.spec_tables import Row, allowed_values, render, rows_of


def all_rows() -> Iterator[Row]:
    shared = [name for name in JobSpec.model_fields if name != "method"]
    yield from rows_of(JobSpec, shared)
    for name, settings in METHODS.items():
        fields = [field for field in settings.model_fields if field != "name"]
        yield from rows_of(settings, fields, f"{name}: method.")


def test_page_is_up_to_date() -> None:
    page = spec_tables.PAGE.read_text(encoding="utf-8")
    assert render(page) == page, "run: python -m tools.spec_tables"


def test_every_field_has_a_description() -> None:
    assert [row.name for row in all_rows() if not row.description.endswith(".")] == []


def test_every_auto_field_says_what_auto_becomes() -> None:
    autos = [row for row in all_rows() if row.default == '`"auto"`']
    assert {"train.batch_size", "swav: method.prototypes"} < {row.name for row in autos}
    assert [row.name for row in autos if '"auto": ' not in row.description] == []


def test_descriptions_mention_auto_only_where_it_is_accepted() -> None:
    rows = [row for row in all_rows() if "`auto`" not in row.allowed]
    assert [row.name for row in rows if '"auto":' in row.description] == []


def test_rows_of_always_present_model_are_its_fields() -> None:
    names = [row.name for row in rows_of(JobSpec, ["train"])]
    assert "train" not in names
    assert "train.optimizer" not in names
    assert {"train.optimizer.lr", "train.clip", "train.clip.norm"} < set(names)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 8, "maximum": 65536}, "integer 8 to 65,536"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "number 0 to below 1"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "number above 0, at most 0.5"),
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, "integer 0 to 2^63 - 1"),
        ({"enum": ["l1", "l2"], "type": "string"}, "`l1`, `l2`"),
        ({"enum": [0, 1], "type": "integer"}, "`0`, `1`"),
        ({"type": "string", "minLength": 1, "maxLength": 9}, "text of 1 to 9 characters"),
        ({"type": "array", "prefixItems": [{"type": "number"}] * 2}, "list of 2 numbers"),
        (
            {"type": "array", "maxItems": 3, "items": {"type": "integer", "minimum": 1}},
            "list of at most 3 items, each integer at least 1",
        ),
        (
            {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"const": "auto"}]},
            "`true`, `false`; `null`; `auto`",
        ),
    ],
)
def test_allowed_values_of_schema(schema: dict[str, Any], text: str) -> None:
    assert allowed_values(schema) == text


@pytest.mark.slow
def test_check_fails_on_outdated_page_and_leaves_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "spec.md"
    outdated = spec_tables.PAGE.read_text(encoding="utf-8").replace("| `priority` |", "| `rank` |")
    page.write_text(outdated, encoding="utf-8")
    monkeypatch.setattr(spec_tables, "PAGE", page)
    assert spec_tables.main(["--check"]) == 1
    assert page.read_text(encoding="utf-8") == outdated
    assert spec_tables.main([]) == 0
    assert spec_tables.main(["--check"]) == 0


def test_page_without_a_block_is_refused() -> None:
    page = spec_tables.PAGE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="expected each of"):
        render(page.replace("<!-- generated: dar -->", ""))
