"""Each published environment alone: its modules import, its commands answer, and what it lacks is named."""

import json
import subprocess
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.support.installations import clean_environment, install
from tools.environments import ENVIRONMENTS, PROJECT, ROOT, Environment, Imports, missing_package
from tools.structure import PACKAGES, read_modules

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("environments"), pytest.mark.timeout(600)]

FORMATS = ("tiff", "dicom", "heif", "raw", "parquet", "huggingface", "s3", "wandb")
MODULES = {"dicom": ("dasl_core.data.decode.dicom_codecs",)}
INSTALLED = [
    # The images' CPU form needs wheels that no registry has; server.lock has the same packages.
    *(each for each in ENVIRONMENTS if not each.wheels and each.name != "dasl[server,oidc]"),
    *(Environment(("core", extra), MODULES.get(extra, ())) for extra in FORMATS),
]
# Imports what runs here and in no smaller environment, in one process; asks each command for its help.
PROGRAM = """
import contextlib, importlib, io, json, sys
from importlib import metadata

names = [each.metadata["Name"] for each in metadata.distributions()]
modules, optional = json.load(sys.stdin)
problems, commands, found = {}, [], []
for name in modules:
    try:
        importlib.import_module(name)
    except BaseException as error:
        problems[name] = repr(error)

def ask(command, path):
    commands.append(" ".join(path))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        root.main([*path, "--help"], prog_name="dasl", standalone_mode=False)
    if not printed.getvalue().startswith("Usage: "):
        problems[" ".join(path)] = printed.getvalue()
    for name, inner in getattr(command, "commands", {}).items():
        ask(inner, [*path, name])

if "service.cli.app" in modules:
    import typer
    from service.cli.app import app
    root = typer.main.get_command(app)
    ask(root, [])
for name in optional:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
        found.append(name)
print(json.dumps([problems, commands, found, names]))
"""


@pytest.fixture(scope="module")
def imports() -> Imports:
    return Imports(read_modules(ROOT, *PACKAGES))


def test_every_extra_is_installed_by_a_test() -> None:
    extras = {extra for environment in INSTALLED for extra in environment.extras}
    assert extras == PROJECT["optional-dependencies"].keys() - {"dev"}


@pytest.mark.parametrize("environment", INSTALLED, ids=lambda environment: environment.name)
def test_environment_alone_runs_its_modules_and_commands(
    environment: Environment, imports: Imports, built_wheel: Path, tmp_path: Path
) -> None:
    python = install(environment, built_wheel) / "python"
    distributions = environment.distributions()
    modules = set(imports.modules_in(environment)) - {
        "service.db.migrations.env"
    }  # Alembic's script
    for smaller in ENVIRONMENTS:
        if smaller.lock is None and smaller.distributions() < distributions:
            modules -= imports.modules_in(smaller).keys() - {"service.cli.app"}
    optional = {name for name, _ in imports.optional if not name.startswith("dasl_core.")}
    optional |= {"fsspec", "obstore.fsspec", "wandb"}  # each imported in a `try`
    done = subprocess.run(
        [python, "-I", "-c", PROGRAM],
        input=json.dumps([sorted(modules), sorted(optional)]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean_environment(HOME=str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    problems, commands, found, names = json.loads(done.stdout.splitlines()[-1])
    assert problems == {}
    assert len(commands) > 90 or "service.cli.app" not in modules
    assert {canonicalize_name(name) for name in names} <= distributions
    assert set(found) == {name for name in optional if not missing_package(name, distributions)}


def test_client_alone_works_or_names_what_it_lacks(built_wheel: Path, tmp_path: Path) -> None:
    dasl = install(ENVIRONMENTS[0], built_wheel) / "dasl"
    (tmp_path / "spec.yaml").write_text("dataset: birds\n", encoding="utf-8")
    for command, status, says in (
        ("validate spec.yaml --local", 0, "is a valid spec"),
        ("backbones resnet18", 0, "resnet18"),
        ("submit spec.yaml", 1, "No DASL server answers at http://127.0.0.1:9"),
        ("train spec.yaml", 1, 'pip install ".[core]"'),
        ("export . --format onnx", 1, 'pip install ".[core]"'),
        ("preview spec.yaml", 1, 'pip install ".[core]"'),
        ("serve", 1, 'pip install ".[server,training]"'),
        ("db upgrade", 1, 'pip install ".[server,training]"'),
        ("doctor", 1, "the server extra is not installed"),
    ):
        done = subprocess.run(
            [dasl, *command.split()],
            cwd=tmp_path,
            env=clean_environment(HOME=str(tmp_path), DASL_URL="http://127.0.0.1:9"),
            capture_output=True,
            text=True,
        )
        printed = done.stdout + done.stderr
        assert (done.returncode, "Traceback" in printed) == (status, False), printed
        assert says in printed, command
