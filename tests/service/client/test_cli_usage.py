"""Exit codes and messages of the command line that need no server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dasl_core.spec import JobSpec
from dasl_core.spec.methods.simclr import SimCLR
from service.cli.inputs import connect, folder_name, read_spec
from tests.support.command_line import run, run_json

SPEC = "name: first\ndataset: emoji\nmethod: {name: simclr, temperature: 0.2}\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the command line at port 9 (`discard`), where no server listens."""
    monkeypatch.setenv("DASL_URL", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["jobs", "--limit", "0"],
        ["jobs", "--limit", "9" * 20],
        ["jobs", "--nope"],
        ["show"],
        ["update", "job_1"],
        ["update", "job_1", "--priority", "high"],
        ["update", "job_1", "--tag", "vision"],
        ["update", "job_1", "--tag", ":vision"],
        ["update", "job_1", "--tag", "team:"],
        ["submit", "/nonexistent.yaml"],
        ["tokens"],
        ["tokens", "set", "tok_1"],
        ["tokens", "set", "tok_1", "--max-gpus", "-1"],
        ["tokens", "create", "lab", "--max-running-jobs", "many"],
        ["tokens", "create", "lab", "--expires-in-days", "soon"],
        ["tenants", "set", "lab"],
        ["tenants", "set", "lab", "--max-gpus", "2.5"],
        ["tenants", "set", "lab", "--max-priority", "high"],
        ["tenants", "set", "lab", "--max-hours", "inf"],
        ["users", "set", "usr_1"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    run(*arguments, code=2)


def test_wrong_choice_is_named_without_the_prefix_of_pydantic() -> None:
    assert "'NAME': 'foo' is not one of 'cub200'" in run("prepare", "foo", "/", "/x", code=2).stderr


@pytest.mark.parametrize("override", ["nothing", "=1", "dataset.x=1", "train.epochs=[1"])
def test_malformed_override_is_wrong_usage(spec: Path, override: str) -> None:
    result = run("submit", spec, "--set", override, code=2)
    assert f"--set {override}" in result.stderr


def test_override_values_are_parsed_as_yaml(spec: Path) -> None:
    body = read_spec(spec, ["method.temperature=0.1", "evaluate.retrieval=[1, 10]", "dar.weight=1"])
    job_spec = JobSpec.model_validate(body)
    assert isinstance(job_spec.method, SimCLR)
    assert job_spec.method.temperature == 0.1
    assert job_spec.evaluate.retrieval == (1, 10)
    assert job_spec.dar is not None


@pytest.mark.parametrize("command", ["submit", "validate"])
def test_invalid_spec_names_its_fields_without_a_request(spec: Path, command: str) -> None:
    result = run(command, spec, "--set", "method.temperatur=1", "--set", "train.epochs=0", code=1)
    assert "method.temperatur" in result.stderr
    assert "train.epochs" in result.stderr
    assert "127.0.0.1" not in result.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "it contains nothing"),
        ("- 1\n", "it contains a list"),
        ("emoji\n", "it contains a string"),
        ("7\n", "it contains a single value"),
        ("dataset: {a\n", "in line"),
        ("\x00", ""),
    ],
)
def test_unreadable_spec_is_described_in_yaml_terms(
    tmp_path: Path, content: str, expected: str
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(content)
    result = run("submit", path, code=1)
    assert result.stdout == ""
    assert str(path) in result.stderr
    assert expected in result.stderr
    assert not any(word in result.stderr for word in ("NoneType", "unicode string", "dict"))


def test_validate_local_needs_no_server(spec: Path) -> None:
    run("validate", "--local", spec)
    answer = run_json("validate", "--local", spec)
    assert answer == {"valid": True, "not_checked": ["the data set", "the cluster's resources"]}


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("recipe=continue", "recipe"),
        ("train.stop={metric: knn_top1, patience: 99}", "train.stop.patience"),
        ("backbone.pretrained={folder}/cut.safetensors", "backbone.pretrained"),
    ],
)
def test_validate_local_names_what_no_data_set_remedies(
    spec: Path, tmp_path: Path, override: str, field: str
) -> None:
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    result = run(
        "validate", "--local", spec, "--set", override.replace("{folder}", str(tmp_path)), code=1
    )
    assert f"  {field}: " in result.stderr


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("dar={estimator: full, difference: abs, norm: l2}", "is a valid spec"),
        ("train.samples_per_class=1", "is a valid spec"),
        ("backbone.pretrained=/elsewhere/w.pth", "pretrained, which is not on this machine"),
    ],
)
def test_validate_local_accepts_what_some_data_set_or_machine_allows(
    spec: Path, override: str, said: str
) -> None:
    changes = ["--set", "method={name: npair}", "--set", override]
    assert said in run("validate", "--local", spec, *changes).stdout


def test_validate_local_leaves_unreadable_weights_to_workers(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    result = run("validate", "--local", spec, "--set", "backbone.pretrained=/secret/w.pth")
    assert "backbone.pretrained, which you may not read" in result.stdout


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
def test_missing_server_is_one_message_and_exit_code_1(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "__defaults__", (0.0,))  # does not try again for a second
    result = run(*arguments, code=1)
    assert result.stdout == ""
    [sentence] = result.stderr.splitlines()
    assert "No DASL server answers at http://127.0.0.1:9" in sentence
    assert "dasl serve" in sentence


BYTES = os.fsdecode(b"birds\xff")  # a file name that is not UTF-8


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        *(([*command, ""], "'' is not an id") for command in TAKING_IDS),
        *(([*command, ".."], "'..' is not an id") for command in TAKING_IDS),
        *(([*command, "job_1/events"], "'job_1/events' is not an id") for command in TAKING_IDS),
        *(([*command, BYTES], r"birds\xff is not UTF-8") for command in TAKING_IDS),
        (["datasets", "add", ""], "'' is not a folder"),
        (["datasets", "add", f"/{BYTES}"], r"/birds\xff is not UTF-8"),
        (["datasets", "add", "/birds", "--name", ""], "--name '': expected at least 1 character"),
        (["datasets", "add", "/birds", "--name", "a/b"], "expected a name without slashes"),
        (["datasets", "add", "/birds", "--name", BYTES], r"birds\xff is not UTF-8"),
        (["datasets", "add", "/a\nb"], "the folder's name 'a\\nb' cannot be used for the data set"),
        (
            ["datasets", "add", "/a\nb"],
            "choose another one with --name: a name without slashes, line breaks",
        ),
        (["datasets", "add", "/"], "choose another one with --name"),
        (["jobs", "--method", BYTES], "is not UTF-8"),
    ],
)
def test_invalid_argument_exits_with_2(arguments: list[str], expected: str) -> None:
    result = run(*arguments, code=2)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    assert expected in result.stderr


def test_malformed_server_address_names_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_URL", "nowhere")
    result = run("jobs", code=1)
    assert "'nowhere' from DASL_URL is not a server address" in result.stderr


def test_arguments_too_long_for_an_address_are_one_message() -> None:
    for command in ("show", "events", "logs", "download"):
        result = run(command, 70_000 * "a", code=1)
        assert "address of the request is too long; shorten the arguments" in result.stderr


def test_schema_prints_the_spec_schema() -> None:
    assert json.loads(run("schema").stdout) == JobSpec.model_json_schema()


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["nothing"], 2), (["jobs"], 1)])
def test_exit_codes_as_a_process(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_folder_name_resolves_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "birds" / "raw"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert folder_name("..") == "birds"
    assert folder_name(".") == "raw"
    assert folder_name("../raw/") == "raw"
