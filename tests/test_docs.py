"""The documentation matches the code: settings, defaults, commands, endpoints, links."""

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import typer
import yaml

from dasl_core.spec import JobSpec
from service.cli.app import app
from service.experiments.schemas import ExperimentRequest
from service.experiments.variants import variant_specs
from service.server.app import create_app
from service.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "tests" / "chaos" / "README.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
]
PACKAGES = ("dasl_core", "service", "workers")
HTTP_METHODS = ("GET ", "POST ", "PUT ", "PATCH ", "DELETE ")


def text_of(page: str | Path) -> str:
    """Return a page's text without its HTML comments."""
    return re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced code blocks of a language."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, flags=re.S | re.M)
    return [dedent(block) for _, block in found]


def prose(text: str) -> str:
    """Return a page's text without its fenced code blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.S | re.M)


def table_rows(page: str) -> Iterator[list[str]]:
    """Yield the cells of every row that starts with a name in backticks, which are removed."""
    for line in prose(text_of(page)).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `") and re.fullmatch(r"`[^`]+`", cells[0]):
            yield [cells[0].strip("`"), *cells[1:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        assert file.is_relative_to(ROOT), f"{page.name} links out of the repository: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_mentioned_source_files_exist(page: Path) -> None:
    folders = "|".join((*PACKAGES, "benchmarks", "docker", "examples", "tests", "tools"))
    for path in re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", prose(text_of(page))):
        if "NAME" not in path:  # a placeholder in the guide for new methods
            assert (ROOT / path).exists(), f"{page.name} mentions {path}, which does not exist"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub creates for the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", prose(text_of(page)), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_yaml_examples_are_valid_specs() -> None:
    examples = [block for page in PAGES for block in blocks(text_of(page), "yaml")]
    # The README writes its first spec with printf.
    written = re.search(r"printf '([^']+)' > spec\.yaml", text_of("README.md"))
    assert written, "the README writes a spec"
    examples.append(written[1].replace("\\n", "\n"))
    for name in ("is-dar-worth-it", "which-views"):
        examples.append((ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8"))
    for content in map(yaml.safe_load, examples):
        if "spec" not in content:
            JobSpec.model_validate(content)
            continue
        experiment = ExperimentRequest.model_validate(content)
        variants = experiment.all_variants()
        assert variant_specs(experiment.spec, variants, experiment.seeds, experiment.name)[1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_parse(page: Path) -> None:
    for block in blocks(text_of(page), "python"):
        ast.parse(block)
    shell = "\n".join(blocks(text_of(page), "bash"))
    checked = subprocess.run(
        ["bash", "-n"], input=shell, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    for block in blocks(text_of(page), "json"):
        json.loads(block)


def test_operations_page_has_every_setting_with_its_default() -> None:
    documented = {name: cells[0] for name, *cells in table_rows("docs/operations.md")}
    for name, field in Settings.model_fields.items():
        variable = field.validation_alias or f"DASL_{name.upper()}"
        assert variable in documented, f"{variable} is not documented"
        default = field.get_default(call_default_factory=True)
        if isinstance(default, str | bool | int | float) and default != "":
            expected = json.dumps(default) if not isinstance(default, str) else default
            value = documented[str(variable)].strip("`")
            assert value in {expected, expected.removesuffix(".0")}, variable


def test_operations_page_has_exactly_the_environment_variables_in_use() -> None:
    used = {
        f"DASL_{name.upper()}"
        for name, field in Settings.model_fields.items()
        if field.validation_alias is None
    }
    for package in PACKAGES:
        for file in (ROOT / package).glob("**/*.py"):
            used |= set(re.findall(r"[\"'](DASL_[A-Z_]+)[\"']", file.read_text(encoding="utf-8")))
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    used |= set(re.findall(r"\$\{(DASL_[A-Z_]+)", compose))
    documented = {name for name, *_ in table_rows("docs/operations.md") if name.startswith("DASL_")}
    assert documented == used
    for page in PAGES:
        named = set(re.findall(r"\bDASL_[A-Z_]+\b", text_of(page)))
        assert named <= used, f"{page.name} names a setting that no code reads"


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `dasl` command in code, without comments and pipes."""
    code = "\n".join(blocks(text, "bash"))
    lines = code.replace("\\\n", "").splitlines()
    lines += re.findall(r"`([^`\n]+)`", prose(text))
    for line in lines:
        command = re.match(r"\s*(?:\w+=\S+ |sudo -\w+ \w+ )*(?:[\w./-]+/bin/)?dasl (.+)", line)
        if command:
            yield shlex.split(re.split(r"[;&|>]", command[1])[0], comments=True)


@cache
def _commands() -> Any:
    return typer.main.get_command(app)


def check_command(arguments: list[str], place: str) -> None:
    """Check that a `dasl` command and its options exist."""
    command = _commands()
    line = f"dasl {' '.join(arguments)}"
    rest = list(arguments)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"{place}: there is no `{line}`"
        command = command.commands[name]
    assert not hasattr(command, "commands"), f"{place}: `{line}` is a group"
    known = {option for parameter in command.params for option in parameter.opts}
    for parameter in command.params:
        needed = parameter.required and parameter.param_type_name == "option"
        is_given = any(word.partition("=")[0] in parameter.opts for word in rest)
        assert is_given or not needed or len(rest) < 2, f"{place}: {line}: lacks {parameter.opts}"
    for argument in rest:
        if argument.startswith("-"):
            assert argument.partition("=")[0] in known, f"{place}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_commands_and_options_exist(page: Path) -> None:
    for arguments in commands_in(text_of(page)):
        check_command(arguments, page.name)


def test_commands_of_the_empty_page_exist() -> None:
    script = ROOT / "service" / "web" / "js" / "jobs" / "no-jobs.js"
    lines = re.findall(r"^(?:const COMMANDS = `)?dasl (.+?)(?:`;)?$", script.read_text(), re.M)
    assert len(lines) == 3
    for line in lines:
        check_command(shlex.split(line), script.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    code = "\n".join([*blocks(text_of(page), "bash"), *re.findall(r"`([^`\n]+)`", text_of(page))])
    named = re.findall(r"^make (?:[A-Z]+=\S+ )*([a-z-]+)", code, flags=re.M)
    assert set(named) <= targets


def test_api_page_has_exactly_the_served_endpoints(tmp_path: Path) -> None:
    schema = create_app(Settings(home=tmp_path)).openapi()
    served = {
        f"{method.upper()} {path}"
        for path, methods in schema["paths"].items()
        for method in methods
        if not path.startswith("/worker/")
    }
    documented = {name for name, *_ in table_rows("docs/api.md") if name.startswith(HTTP_METHODS)}
    assert documented == served


def test_api_page_has_every_problem_type() -> None:
    rows = re.findall(r"^\| (\d{3}(?:, \d{3})*) \| (.+) \|$", text_of("docs/api.md"), flags=re.M)
    documented = {
        (status, type)
        for statuses, types in rows
        for status in statuses.split(", ")
        for type in re.findall(r"`([a-z-]+)`", types)
    }
    raised = {
        (ast.unparse(call.args[0]), call.args[1].value)
        for file in (ROOT / "service").glob("**/*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Problem"
        if isinstance(call.args[0], ast.Constant) and isinstance(call.args[1], ast.Constant)
    }
    assert len(raised) > 20
    assert raised <= documented


def test_api_examples_use_documented_endpoints() -> None:
    text = text_of("docs/api.md")
    documented = {
        re.sub(r"\{[^}]+\}", "*", name.partition(" ")[2])
        for name, *_ in table_rows("docs/api.md")
        if name.startswith(HTTP_METHODS)
    }
    used = re.findall(r'"\$DASL_URL(/[^"?]+)', "\n".join(blocks(text, "bash")))
    assert used
    for path in used:
        general = re.sub(r"JOB|CHECKPOINT|DATASET|TOKEN|backbone\.safetensors", "*", path)
        assert general in documented, path


def test_pages_name_no_local_paths() -> None:
    for page in PAGES:
        paths = re.findall(r"(?<![\w.~])/(?:home|root|tmp|Users|mnt)/\S*", text_of(page))
        assert not paths, f"{page.name}: {paths}"
