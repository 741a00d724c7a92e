"""README's first job as it is deployed: server, Ray with its workers, and client have their own packages each."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from PIL import Image

from service.embedded.local_ray import _command, _environment, _free_ports
from tests.support.databases import postgres_server
from tests.support.installations import clean_environment, install
from tests.support.polling import until
from tests.support.running_service import CLASSES, draw
from tests.test_docs import blocks, text_of
from tools.environments import ENVIRONMENTS

# Not beside the tests that exchange the packages of these environments.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("environments"), pytest.mark.timeout(1800)]
RAY_TOKEN = "0123456789abcdef" * 4
Deployed = tuple[Path, Path, dict[str, str]]


def run(command: list[str | Path], folder: Path, **variables: str) -> str:
    """Run a command outside the checkout and return its output."""
    environment = clean_environment(HOME=str(folder), **variables)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    logs = [file.read_text(errors="replace")[-2000:] for file in folder.glob("*.log")]
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
    return done.stdout


@pytest.fixture(scope="module")
def deployment(built_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A running service; the `bin` folder of its workers, a folder with the client, and its variables."""
    named = {environment.name: environment for environment in ENVIRONMENTS}
    client, server, worker = (
        install(named[name], built_wheel) for name in ("dasl", "server.lock", "worker.lock")
    )
    folder = tmp_path_factory.mktemp("deployed")
    pictures = folder / "pictures" / "birds"
    # Large enough for the standard stem: plain timm loads the backbone then.
    for label, name in enumerate(CLASSES):
        (pictures / name).mkdir(parents=True)
        for number in range(6):
            picture = Image.fromarray(draw(label, number)).resize((96, 96))
            picture.save(pictures / name / f"{number}.png")
    ports = _free_ports(10)
    url = f"http://127.0.0.1:{ports[9]}"
    with ExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        settings = {
            "DASL_DATABASE_URL": postgres.url,
            "DASL_ARTIFACTS_URI": f"file://{folder}/artifacts",
            "DASL_DATASET_ROOTS": str(folder / "pictures"),
            "DASL_API_URL": url,
            "DASL_PORT": str(ports[9]),
            "DASL_RAY_ADDRESS": f"http://127.0.0.1:{ports[0]}",
            "RAY_AUTH_TOKEN": RAY_TOKEN,
        }
        run([server / "dasl", "db", "upgrade"], folder, **settings)
        token = run([server / "dasl", "db", "admin-token", "test"], folder, **settings).strip()

        def start(name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
            """Start a process that ends, with all of its children, at the latest with this one."""
            guard = [sys.executable, "-P", "-m", "service.embedded.subreaper", "5", *command]
            with (folder / f"{name}.log").open("wb") as output:
                process = subprocess.Popen(
                    guard,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    cwd=folder,
                )
            assert process.stdin is not None
            stack.callback(process.wait, 60)
            stack.callback(process.stdin.close)

        # Sockets in it must have short paths.
        session = stack.enter_context(TemporaryDirectory(prefix="dasl-ray-", dir="/tmp"))
        added = _environment(RAY_TOKEN, ports).items() - os.environ.items()
        variables = dict(added) | {
            "DASL_CACHE_DIR": f"{folder}/cache",
            "DASL_STANDBY_RANKS": "0",
            "RAY_worker_niceness": "0",
        }
        variables["PATH"] = f"{worker}:/usr/bin:/bin"  # as in the image
        command: list[str | Path] = [
            worker / "python",
            *_command(folder / "needed", Path(session), ports, 2)[1:],
        ]
        start("ray", command, clean_environment(**variables))
        python = server / "python"
        start("api", [python, "-m", "service.server"], clean_environment(**settings))
        alive = folder / "alive"
        command = [python, "-m", "service.dispatcher", "--save-on-stop", "--alive-file", alive]
        start("dispatcher", command, clean_environment(**settings))

        def ready() -> bool | None:
            try:
                return httpx.get(f"{url}/readyz", timeout=5).is_success or None
            except httpx.HTTPError:
                return None

        until(ready, "an API that is ready, with dispatcher and Ray", 200)
        (folder / ".venv").symlink_to(client.parent)
        yield worker, folder, {"DASL_URL": url, "DASL_TOKEN": token}


def test_first_job_from_submission_to_timm(deployment: Deployed) -> None:
    """The blocks of README.md, and of first-job.md and checkpoints.md on what comes out."""
    worker, folder, variables = deployment
    [submit] = [each for each in blocks(text_of("README.md"), "bash") if "dasl submit" in each]
    [show] = [each for each in blocks(text_of("docs/first-job.md"), "bash") if "show last" in each]
    # A network that trains in seconds; all else is as written.
    submit = submit.replace("dataset: birds", "dataset: birds\\nbackbone: {name: test_resnet}")
    printed = run(["bash", "-c", f"set -euo pipefail\n{submit}\n{show}"], folder, **variables)
    assert "succeeded" in printed
    pages = ("README.md", "docs/first-job.md", "docs/checkpoints.md")
    load = "\n".join(blocks(text_of(page), "python")[0] for page in pages)
    Image.new("RGB", (80, 60)).save(folder / "birds-backbone" / "photo.jpg")
    run([worker / "python", "-I", "-c", load], folder / "birds-backbone")
