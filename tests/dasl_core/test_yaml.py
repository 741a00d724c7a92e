"""YAML specs: ambiguous values, and input that could exhaust the reader."""

import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dasl_core.spec import JobSpec, apply_overrides, dump_yaml, field_problems, load_spec
from dasl_core.spec.base import shorten


def read(folder: Path, text: str) -> dict[str, Any]:
    file = folder / "spec.yaml"
    file.write_text(text, encoding="utf-8")
    return load_spec(file)


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("train: {epochs: 1}\ndataset: x\ntrain: {seed: 2}", "train", 3),
        ("dataset: x\ntrain:\n  epochs: 1\n  epochs: 2", "epochs", 4),
        ('{"dataset": "x", "dataset": "y"}', "dataset", 1),
        ("a: 1\n'a': 2", "a", 2),
        ("tags: [{b: 1, b: 1}]", "b", 1),
    ],
)
def test_repeated_key_is_refused(tmp_path: Path, text: str, key: str, line: int) -> None:
    with pytest.raises(ValueError, match=rf"(?s)spec\.yaml.*duplicate key {key}.*line {line},"):
        read(tmp_path, text)


BOMB = "a0: &a0 [1]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40))


@pytest.mark.parametrize("text", ["a: &a {x: *a}", "a: &a [1]\nb: {<<: *a}", BOMB])
def test_aliases_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"(?s)spec\.yaml.*aliases are not supported"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        "a: " + "[" * 200_000,
        "{a: " * 3000,
        "\n".join(" " * n + "a:" for n in range(500)),
    ],
)
def test_deep_nesting_is_refused_quickly(tmp_path: Path, text: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="nested more than 40 levels deep"):
        read(tmp_path, text)
    assert time.monotonic() - began < 5
    assert read(tmp_path, "a: " + "[" * 30 + "]" * 30)


def test_numbers_follow_yaml_1_2(tmp_path: Path) -> None:
    text = (
        "{a: 010, b: 1:30, c: 0o10, d: 0x1F, e: 1e-3, f: 1_000, g: -7, h: +2.5, i: .5, j: 3., k: 0,"
        " l: 2024-01, m: 1e3, n: '5', o: -.inf, p: 0b1}"
    )
    assert read(tmp_path, text) == {
        "a": 10,
        "b": "1:30",
        "c": 8,
        "d": 31,
        "e": 0.001,
        "f": "1_000",
        "g": -7,
        "h": 2.5,
        "i": 0.5,
        "j": 3.0,
        "k": 0,
        "l": "2024-01",
        "m": 1000.0,
        "n": "5",
        "o": float("-inf"),
        "p": "0b1",
    }
    assert apply_overrides({}, ["train.epochs=010"]) == {"train": {"epochs": 10}}


# Names of folders that YAML 1.1, 1.2 or both read as something else.
PLAIN = """08 09 0831 1e3 12e4 0o7 0x1F 0b1 1_000 1:30 2024 2024-01-31 +1 .5 3. . yes no on off True null ~ = << # *x &x
!x @ ` % Möwe 鳥 🦉 ' " .inf .nan - ? {} [] | >"""
NAMES = [*PLAIN.split(), "", "- a", "a: b", "x #y", " x ", "a\nb", "\ufeffx"]


@pytest.mark.parametrize("style", [{}, {"default_flow_style": None, "width": 10_000}])
def test_what_is_written_is_read_as_it_was(tmp_path: Path, style: dict[str, Any]) -> None:
    content: dict[str, Any] = {"names": NAMES, **{name: {name: [name]} for name in NAMES}}
    content |= {"numbers": [1, -7, 0.1, 1e-5, 1e22, 1e300, float("inf"), True, None]}
    assert read(tmp_path, dump_yaml(content, **style)) == content


@pytest.mark.parametrize("value", ["2024", "08", "1e3", "no"])
def test_unquoted_name_of_a_data_set_is_told_about_quotes(value: str) -> None:
    spec = apply_overrides({}, [f"dataset={value}", "method.name=simclr"])
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate(spec)
    assert "a string in quotes" in {str(p.expected) for p in field_problems(caught.value)}.pop()


def test_date_is_a_string() -> None:
    assert apply_overrides({}, ["dataset=2024-01-31"]) == {"dataset": "2024-01-31"}


@pytest.mark.parametrize("value", ["9" * 5000, "!!int x", "? [a]\n: b"])
def test_unreadable_value_error_names_file(tmp_path: Path, value: str) -> None:
    with pytest.raises(ValueError, match=r"spec\.yaml"):
        read(tmp_path, f"a: {value}" if "?" not in value else value)


def test_override_is_parsed_like_a_file() -> None:
    for override in ("a={b: 1, b: 2}", "a=[&x 1, *x]", "a=" + "[" * 3000):
        with pytest.raises(ValueError, match="--set a="):
            apply_overrides({}, [override])


def test_error_formats_only_the_shown_part_of_a_value() -> None:
    for value in ("text", 5, [1, "a", {"b": 2.5}], {}, [], {1: [2]}, (1,), b"x"):
        assert shorten(value) == repr(value)
    assert shorten([None, True, False]) == "[null, true, false]"
    assert shorten("x" * 201) == repr("x" * 201)[:77] + "..."
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    itself: list[Any] = []
    itself.append(itself)
    bomb: Any = "bomb"
    for _ in range(40):
        bomb = [bomb, bomb]
    began = time.monotonic()
    for hostile in (nested, itself, bomb, 10**10_000, ["x" * 10**7] * 10**6, {"k" * 10**7: 1}):
        assert len(shorten(hostile)) == 80
    assert time.monotonic() - began < 2
    del nested
