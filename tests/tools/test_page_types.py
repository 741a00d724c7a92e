"""What `make lint` checks of the page: templates as JSX on the same lines, and the types of the API."""

import pytest

from service.web.endpoints import ROOT
from tools.page_types import Declarations, as_jsx


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("html`<p class=${a}>${b}</p>`;", "<><p class={a}>{b}</p></>;"),
        (
            "html`<${A} ...${b} c>${(d) => html`<i />`}<//>`;",
            "<><A {...b} c>{(d) => <><i /></>}</A></>;",
        ),
        ("html`<b\n>${`}${a}\\``}</b\n>`;", "<><b\n>{`}${a}\\``}</b\n></>;"),
        (
            "x = /[`/]/.test(a) ? 4 / 2 / b : '`'; // html`",
            "x = /[`/]/.test(a) ? 4 / 2 / b : '`'; // html`",
        ),
        ("html`${{ a: { b } }}`", "<>{{ a: { b } }}</>"),
    ],
)
def test_templates_become_jsx(module: str, expected: str) -> None:
    assert as_jsx(module) == expected


def test_copies_keep_the_lines_of_the_modules() -> None:
    for path in (ROOT / "js").rglob("*.js"):
        source = path.read_text()
        copy = as_jsx(source)
        assert "html`" not in copy
        assert copy.count("\n") == source.count("\n"), path


def test_types_of_the_api() -> None:
    row = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "tags": {"type": "array", "items": {"$ref": "#/components/schemas/Tag"}, "default": []},
        },
        "required": ["id"],
    }
    document = {
        "components": {"schemas": {"Row": row, "Change": row, "Tag": {"enum": ["a", None]}}},
        "paths": {
            "/rows/{id}": {
                "patch": {
                    "parameters": [{"in": "query", "name": "dry", "schema": {"type": "boolean"}}],
                    "requestBody": {
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Change"}}
                        }
                    },
                    "responses": {
                        "200": {
                            "content": {
                                "application/json": {"schema": {"$ref": "#/components/schemas/Row"}}
                            }
                        },
                        "422": {},
                    },
                }
            }
        },
    }
    lines = [line.strip() for line in Declarations(document).text().splitlines()]
    assert lines == [
        "declare namespace Api {",
        # An answer has what has a default; a request may leave it out.
        "type Row = { id: number; tags: (Tag)[] };",
        "type Change = { id: number; tags?: (Tag)[] };",
        'type Tag = "a" | null;',
        "interface Operations {",
        '"PATCH /rows/{}": { query: { dry?: boolean }; body: Change; answer: Row };',
        "}",
        "}",
    ]
