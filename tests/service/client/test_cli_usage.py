"""Exit codes and messages of the command line that need no server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dasl_core.spec import JobSpec
from dasl_core.spec.methods import SimCLR
from service.cli.app import app
from service.cli.specs import read_spec

SPEC = "name: first\ndataset: emoji\nmethod: {name: simclr, temperature: 0.2}\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's address where none is: port 9 is `discard`, which nobody runs."""
    monkeypatch.setenv("DASL_URL", "http://127.0.0.1:9")


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["jobs", "--limit", "0"],
        ["jobs", "--nope"],
        ["show"],
        ["update", "job_1"],
        ["update", "job_1", "--priority", "high"],
        ["update", "job_1", "--tag", "vision"],
        ["update", "job_1", "--tag", ":vision"],
        ["submit", "/nonexistent.yaml"],
        ["tokens"],
        ["tokens", "set", "tok_1"],
        ["tokens", "set", "tok_1", "--max-gpus", "-1"],
        ["tokens", "create", "lab", "--max-running-jobs", "many"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert _run(*arguments).exit_code == 2


@pytest.mark.parametrize("override", ["nothing", "=1", "dataset.x=1", "train.epochs=[1"])
def test_an_override_that_is_none_is_wrong_usage(spec: Path, override: str) -> None:
    result = _run("submit", spec, "--set", override)
    assert result.exit_code == 2
    assert f"--set {override}" in result.stderr


def test_overrides_are_read_as_yaml(spec: Path) -> None:
    body = read_spec(spec, ["method.temperature=0.1", "evaluate.retrieval=[1, 10]", "dar.weight=1"])
    found = JobSpec.model_validate(body)
    assert isinstance(found.method, SimCLR)
    assert found.method.temperature == 0.1
    assert found.evaluate.retrieval == (1, 10)
    assert found.dar is not None


@pytest.mark.parametrize("command", ["submit", "validate"])
def test_a_spec_at_fault_names_its_fields_without_asking_anyone(spec: Path, command: str) -> None:
    result = _run(command, spec, "--set", "method.temperatur=1", "--set", "train.epochs=0")
    assert result.exit_code == 1
    assert "method.temperatur" in result.stderr
    assert "train.epochs" in result.stderr
    assert "127.0.0.1" not in result.stderr


@pytest.mark.parametrize("content", ["", "- 1\n", "{a: ", "\x00", "dataset: x\nname: 2026-01-01\n"])
def test_a_file_that_holds_no_spec(tmp_path: Path, content: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(content)
    result = _run("submit", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(path) in result.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it holds nothing"),
        ("- 1\n", "it holds a list"),
        ("emoji\n", "it holds a text"),
        ("7\n", "it holds one value"),
        ("dataset: {a\n", "in line"),
    ],
)
def test_a_file_that_holds_no_spec_is_told_in_words_of_yaml(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(content)
    told = _run("submit", path).stderr
    assert said in told
    assert not any(word in told for word in ("NoneType", "unicode string", "dict"))


def test_a_valid_spec_needs_no_server_to_be_called_so(spec: Path) -> None:
    assert _run("validate", "--local", spec).exit_code == 0
    assert json.loads(_run("validate", "--local", spec, "--json").stdout) == {"valid": True}


TAKING_IDS = [
    ["show"],
    ["events"],
    ["evaluations"],
    ["update"],
    ["watch"],
    ["logs"],
    ["cancel"],
    ["pause"],
    ["resume"],
    ["clone"],
    ["pin"],
    ["delete"],
    ["checkpoints"],
    ["download"],
    ["artifacts"],
    ["datasets", "show"],
    ["datasets", "rm"],
    ["tokens", "revoke"],
    ["tokens", "set"],
]


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs"],
        ["jobs", "--json"],
        ["show", "job_1"],
        ["events", "job_1"],
        ["evaluations", "job_1"],
        ["update", "job_1", "--tag", "team:vision"],
        ["watch", "job_1"],
        ["logs", "job_1"],
        ["cancel", "job_1"],
        ["checkpoints", "job_1"],
        ["download", "ckpt_1"],
        ["artifacts", "job_1"],
        ["datasets", "list"],
        ["datasets", "add", "."],
        ["tokens", "list"],
        ["audit"],
        ["cluster"],
    ],
)
def test_no_server_is_one_sentence_and_1(arguments: list[str]) -> None:
    result = _run(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [sentence] = result.stderr.splitlines()
    assert "No DASL server answers at http://127.0.0.1:9" in sentence
    assert "dasl serve" in sentence


BYTES = os.fsdecode(b"birds\xff")  # a name on disk that is not UTF-8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *(([*command, ""], "'' is not an id") for command in TAKING_IDS),
        *(([*command, ".."], "'..' is not an id") for command in TAKING_IDS),
        *(([*command, BYTES], r"birds\xff is not UTF-8") for command in TAKING_IDS),
        (["datasets", "add", ""], "'' is not a folder"),
        (["datasets", "add", f"/{BYTES}"], r"/birds\xff is not UTF-8"),
        (["datasets", "add", "/birds", "--name", ""], "--name '': expected at least 1 character"),
        (["datasets", "add", "/birds", "--name", "a/b"], "expected a name without slashes"),
        (["datasets", "add", "/birds", "--name", BYTES], r"birds\xff is not UTF-8"),
        (["datasets", "add", "/a\nb"], "the folder's own name, 'a\\nb', cannot be the data set's"),
        (["datasets", "add", "/a\nb"], "give one with --name: a name without slashes, line breaks"),
        (["datasets", "add", "/"], "give one with --name"),
        (["jobs", "--method", BYTES], "holds bytes that are not UTF-8"),
    ],
)
def test_what_cannot_be_an_argument_is_an_error_and_2(arguments: list[str], said: str) -> None:
    result = _run(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_URL", "nowhere")
    result = _run("jobs")
    assert result.exit_code == 1
    assert "'nowhere' from DASL_URL is not a server address" in result.stderr


def test_the_schema_is_that_of_a_spec() -> None:
    assert json.loads(_run("schema").stdout) == JobSpec.model_json_schema()


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["nothing"], 2), (["jobs"], 1)])
def test_as_a_process(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
