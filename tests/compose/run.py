"""Start docker-compose.yml for real and check what docs/operations.md says about it.

    python -m tests.compose.run [--s3] [--cpu] [--compose "docker compose"] [--port 18000] [--output FILE]

It needs a container engine with compose, this repository's environment (`make setup`) to load the trained
backbone, chromium to open the page, and 15 minutes. `make compose-test` runs it, before that with `--cpu`, which
builds the worker's image for CPUs, if the wheels for that are in docker/wheels. It does not touch another deployment
on the same machine: it uses its own project, volumes, port and secrets, and removes all but the images at the end.

It checks that

- compose refuses to start without secrets;
- the images build, and the service starts and becomes ready;
- only the API is published, no container runs as root, and the API's image has no torch;
- Ray and PostgreSQL refuse access without their secrets;
- a folder is ingested, and a job on it survives the death of each container in turn, and timm loads its backbone;
- images are uploaded, and the backbone is evaluated on them and embeds them;
- the page opens in a browser, and shows the job;
- with `--s3`, the artifacts are on the S3 server of the profile `s3`, which is killed as well;
- all data is still there after `down` and `up`.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import sync_playwright
from pyarrow import parquet

from benchmarks.machine import machine
from examples.emoji import unpack_emoji
from service.client import Client, DaslError
from service.client.sync.models import Job
from service.wire.checkpoints import CheckpointView
from tests.support.exports import code_of
from tests.support.polling import until
from tests.web.conftest import CHROMIUM, CHROMIUM_ARGUMENTS, log_in, watched

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "dasl-compose-test"
SERVICES = ("postgres", "api", "dispatcher", "ray-head", "worker")
CLASSES = 40
SPEC: dict[str, Any] = {
    "dataset": "emoji",
    "backbone": {"name": "resnet18", "image_size": 32},
    "train": {"batch_size": 64, "checkpoint_every_epochs": 2},
    "evaluate": {"every_epochs": 50},
    "resources": {"cpus_per_worker": 1, "max_restarts": 10},
}
# Training must progress by so many steps before each kill.
STEPS_BETWEEN_KILLS = 6


def check(holds: bool, what: str) -> None:
    """Print whether a condition holds, and exit if it does not."""
    print(f"{'ok  ' if holds else 'FAIL'}  {what}", flush=True)
    if not holds:
        raise SystemExit(1)


@dataclass(frozen=True)
class Deployment:
    """A compose project with its own secrets."""

    command: list[str]
    secrets: Path
    url: str
    services: tuple[str, ...]

    def compose(self, *arguments: str, fails: bool = False) -> str:
        """Run a compose command and return its output, or its errors where it must fail."""
        ended = subprocess.run(
            [*self.command, "--project-name", PROJECT, "--env-file", str(self.secrets), *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if (ended.returncode != 0) != fails:
            print(ended.stdout, ended.stderr, file=sys.stderr)
            raise SystemExit(f"compose {shlex.join(arguments)}: exit code {ended.returncode}")
        return ended.stderr if fails else ended.stdout

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        """Return a command's JSON list. Versions of compose print an array or one object a line."""
        text = self.compose(*arguments, "--format", "json").strip()
        rows = json.loads(text) if text.startswith("[") else map(json.loads, text.splitlines())
        return list(rows)

    def python(self, service: str, code: str) -> str:
        """Run Python code in a running container and return what it prints."""
        return self.compose("exec", "-T", service, "python", "-c", code).strip()

    def status_of(self, url: str) -> int:
        """Return the HTTP status that a GET from within the private network gets."""
        code = (
            "import urllib.request as u, urllib.error as e\n"
            f"try: print(u.urlopen({url!r}).status)\n"
            "except e.HTTPError as r: print(r.code)"
        )
        return int(self.python("api", code))

    def until_ready(self) -> None:
        """Wait until `/readyz` reports that the service is ready."""

        def ready() -> bool | None:
            try:
                return httpx.get(f"{self.url}/readyz", timeout=5).is_success or None
            except httpx.HTTPError:
                return None

        until(ready, "/readyz reports that the service is ready")


def main() -> None:
    """Run all checks of the module's docstring and write the measurements."""
    parser = argparse.ArgumentParser(description="Start docker-compose.yml for real and test it.")
    parser.add_argument("--compose", default="docker compose", help="the compose command")
    parser.add_argument("--port", type=int, default=18000, help="loopback port for the API")
    parser.add_argument(
        "--seconds", type=float, default=400, help="training time of the job without any kill"
    )
    parser.add_argument("--s3", action="store_true", help="keep the artifacts on S3")
    parser.add_argument("--cpu", action="store_true", help="build the worker's image for CPUs")
    parser.add_argument("--output", type=Path, help="default: compose.json in benchmarks/results")
    arguments = parser.parse_args()
    options = [name for name in ("s3", "cpu") if getattr(arguments, name)]
    name = "-".join(["compose", *options]) + ".json"
    output: Path = arguments.output or ROOT / "benchmarks/results" / name
    results: dict[str, Any] = {"machine": machine("ray", "torch")}
    with (
        tempfile.TemporaryDirectory(prefix="dasl-compose-") as folder,
        deployed(
            shlex.split(arguments.compose), Path(folder), arguments.port, options
        ) as deployment,
    ):
        results |= start(deployment)
        check_exposure(deployment)
        check_no_torch_in_server(deployment)
        results |= measure(deployment)
        token = deployment.compose("exec", "-T", "api", "dasl", "db", "admin-token", "test").strip()
        with Client(deployment.url, token, patience=60) as client:
            client.datasets.add("/data/emoji", "emoji").wait()
            job = submit(client, epochs_of(client, arguments.seconds))
            results["recovery"] = kill_each_container(deployment, client, job)
            job = until(lambda: ended(client, job), "the job ends")
            check(job.status == "succeeded", f"the job succeeded, with {job.restarts} restarts")
            results["job"] = {"attempts": job.attempt, "restarts": job.restarts}
            load(client, final(client, job), Path(folder) / "first")
            check_model_runs(client, final(client, job), Path(folder))
            check_page(deployment.url, token, job)
            if arguments.s3:
                check_s3(deployment, job)
            deployment.compose("down")
            deployment.compose("up", "--detach", "--wait")
            load(client, final(client, job), Path(folder) / "second")
    output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))


@contextmanager
def deployed(
    command: list[str], folder: Path, port: int, options: list[str]
) -> Iterator[Deployment]:
    """Yield a deployment with training images that is not started yet; remove it at the end."""
    data, secrets = folder / "data", folder / ".env"
    unpack_emoji(data, CLASSES)
    # The containers run as another user, who must be able to read the images.
    for path in (folder, data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    services = (*SERVICES, "s3") if "s3" in options else SERVICES
    deployment = Deployment(command, secrets, f"http://127.0.0.1:{port}", services)
    secrets.touch()
    refusal = deployment.compose("up", "--detach", fails=True)
    check("make_env.py" in refusal, "nothing starts without secrets, and the error says what to do")
    secrets.unlink()
    make = [sys.executable, "docker/make_env.py", "--data", str(data), "--output", str(secrets)]
    make += ["--s3"] if "s3" in options else []
    subprocess.run(make, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    check(secrets.stat().st_mode & 0o777 == 0o600, "only the owner can read the secrets")
    check(
        subprocess.run(make, cwd=ROOT, capture_output=True).returncode == 1,
        "existing secrets are kept",
    )
    with secrets.open("a", encoding="utf-8") as file:
        file.write(f"DASL_PORT={port}\nACCELERATOR={'cpu' if 'cpu' in options else 'cuda'}\n")
    try:
        yield deployment
    except BaseException:
        print(deployment.compose("ps", "--all"), deployment.compose("logs", "--tail", "40"))
        raise
    finally:
        deployment.compose("--profile", "*", "down", "--volumes", "--remove-orphans")


def start(deployment: Deployment) -> dict[str, float]:
    """Build and start the deployment; return how long each took."""
    began = time.monotonic()
    deployment.compose("build")
    built = time.monotonic()
    deployment.compose("up", "--detach")
    deployment.until_ready()
    ready = time.monotonic()
    deployment.compose("up", "--detach", "--wait")
    check(True, "every container is healthy")
    return {"build_seconds": round(built - began, 1), "ready_seconds": round(ready - built, 1)}


def check_exposure(deployment: Deployment) -> None:
    """Check published ports, users of containers, and access to Ray and PostgreSQL."""
    listed = deployment.listed("ps", "--all")
    published = {
        (container["Service"], port["URL"])
        for container in listed
        for port in container["Publishers"] or ()
        if port["PublishedPort"]
    }
    check(published == {("api", "127.0.0.1")}, "only the API is published, on loopback")
    check(
        [container["ExitCode"] for container in listed if container["Service"] == "migrate"] == [0],
        "the tables were migrated, once",
    )
    for service in deployment.services:
        user = deployment.compose("exec", "-T", service, "id", "-u").strip()
        check(user not in ("", "0"), f"{service} runs as user {user}, not as root")
    check(
        deployment.status_of("http://ray-head:8265/api/jobs/") == 401,
        "Ray refuses requests without its token",
    )
    connect = (
        "import psycopg\n"
        "for password in ('', 'dasl', 'postgres'):\n"
        " try: psycopg.connect(host='postgres', user='dasl', dbname='dasl', password=password)\n"
        " except psycopg.OperationalError: continue\n"
        " print(password)"
    )
    check(deployment.python("api", connect) == "", "PostgreSQL has no default password")


def check_no_torch_in_server(deployment: Deployment) -> None:
    """Check that the server's image has neither torch nor Ray, and the worker's has both."""
    find = "import importlib.util as u; print([m for m in ('torch', 'ray') if u.find_spec(m)])"
    check(deployment.python("api", find) == "[]", "the API's image has no torch and no Ray")
    check(deployment.python("worker", find) == "['torch', 'ray']", "the worker's image has both")


def check_s3(deployment: Deployment, job: Job) -> None:
    """Check that a job's checkpoints are objects, and that S3 refuses requests without access."""
    find = (
        "import os\n"
        "from service.object_store import open_store\n"
        "fs, path = open_store(os.environ['DASL_ARTIFACTS_URI'])\n"
        f"print(sum('/checkpoints/' in name for name in fs.find(f'{{path}}/jobs/{job.id}')))"
    )
    check(int(deployment.python("api", find)) > 0, "the checkpoints are on the S3 server")
    status = deployment.status_of("http://s3:8333/dasl?list-type=2")
    check(status == 403, "S3 refuses requests without access")


def check_model_runs(client: Client, checkpoint: CheckpointView, folder: Path) -> None:
    """Upload images; evaluate a checkpoint on them, and embed them with it."""
    uploaded = client.datasets.upload(folder / "data" / "emoji", "uploaded").wait()
    assert uploaded.facts is not None
    count = uploaded.facts["num_images"]
    check(count > 0, f"{count} images were uploaded and ingested")
    evaluation = client.model_runs.wait(client.checkpoints.evaluate(checkpoint.id, "uploaded").id)
    check(evaluation.state == "succeeded", "the backbone was evaluated on them")
    embedding = client.model_runs.wait(client.checkpoints.embed(checkpoint.id, "uploaded").id)
    [file] = client.model_runs.download(embedding, folder / "embedding")
    check(parquet.read_table(file).num_rows == count, "each of them was embedded")


def check_page(url: str, token: str, job: Job) -> None:
    """Log in to the page in a browser and check that it shows a job, without any error in its console."""
    check("<title>DASL" in httpx.get(url, trust_env=False).text, "the page is served")
    if CHROMIUM is None:
        print("skip  the page was not opened in a browser: chromium is not installed here")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS)
        )
        with watched(browser.new_context(), url) as watch:
            log_in(watch.page, url, token)
            watch.page.get_by_role("link", name=job.name).first.wait_for()
            watch.open(f"jobs/{job.id}/checkpoints").get_by_text("final").first.wait_for()
        browser.close()
    check(True, "the page opens in a browser and shows the job")


def measure(deployment: Deployment) -> dict[str, Any]:
    """Return the sizes of the images and the memory of each idle container."""
    services = {row["Name"]: row["Service"] for row in deployment.listed("ps")}
    memory = {
        services[row["Name"]]: row["MemUsage"].partition("/")[0].strip()
        for row in deployment.listed("stats", "--no-stream")
        if row["Name"] in services
    }
    sizes = {row["Repository"]: row["Size"] for row in deployment.listed("images")}
    return {"image_bytes": sizes, "idle_memory": memory}


def submit(client: Client, epochs: int) -> Job:
    """Submit a job that trains for so many epochs."""
    return client.jobs.submit({**SPEC, "train": {**SPEC["train"], "epochs": epochs}})


def epochs_of(client: Client, seconds: float) -> int:
    """Run a short job and return how many epochs take `seconds` on this machine."""
    short = submit(client, 2).wait()
    progress = short.progress
    assert progress is not None
    speed, steps = progress.images_per_second, progress.total_steps
    check(speed is not None, f"a short job succeeded, at {speed} images a second")
    assert speed is not None
    assert steps is not None
    images = steps / 2 * int(SPEC["train"]["batch_size"])
    return max(20, round(seconds * speed / images))


def kill_each_container(deployment: Deployment, client: Client, job: Job) -> dict[str, Any]:
    """Kill each container in turn; return the seconds until the service is ready and training."""
    seconds = {}
    for service in deployment.services:
        begun = until(lambda: trained(client, job, 0), "the job trains")
        next_kill = begun + STEPS_BETWEEN_KILLS
        until(lambda: trained(client, job, next_kill), "training continues")  # noqa: B023
        before = client.jobs.get(job.id)
        deployment.compose("kill", "--signal", "KILL", service)
        killed = time.monotonic()
        deployment.compose("start", service)
        deployment.until_ready()
        ready = time.monotonic()
        reached = before.progress.step or 0 if before.progress else 0
        until(lambda: trained(client, job, reached + 1), "training resumes")  # noqa: B023
        now = client.jobs.get(job.id)
        check(now.status == "running", f"{service} was killed, and the job continues")
        assert now.attempt is not None
        assert before.attempt is not None
        seconds[service] = {
            "ready_seconds": round(ready - killed, 1),
            "beyond_last_step_seconds": round(time.monotonic() - killed, 1),
            "new_attempts": now.attempt - before.attempt,
        }
    # From inside the container: compose does not restart containers that it stopped itself.
    deployment.compose("exec", "-T", "api", "sh", "-c", "kill -TERM 1")
    deployment.until_ready()
    check(True, "a container that exits is restarted")
    return seconds


def trained(client: Client, job: Job, step: int) -> int | None:
    """Return the step that the running attempt has reached, if it is at least `step`."""
    try:
        now = client.jobs.get(job.id)
    except DaslError:
        return None
    if now.done:
        raise SystemExit(
            f"the job has ended too early: {now.status}, {now.error}; try more --seconds"
        )
    reached = now.progress.step if now.progress and now.status == "running" else None
    return reached if reached is not None and reached >= step else None


def ended(client: Client, job: Job) -> Job | None:
    """Return the job once it has ended, else None."""
    now = client.jobs.get(job.id)
    return now if now.done else None


def final(client: Client, job: Job) -> CheckpointView:
    """Return the final checkpoint of a job that has ended."""
    return next(saved for saved in client.jobs.checkpoints(job.id) if saved.final)


def load(client: Client, checkpoint: CheckpointView, folder: Path) -> None:
    """Download a backbone and load all of its weights in timm, with the code of its model card."""
    client.checkpoints.download(checkpoint.id, folder)
    (folder / "load.py").write_text(code_of(folder))
    loaded = subprocess.run([sys.executable, "load.py"], cwd=folder)
    check(loaded.returncode == 0, "the checkpoint downloads, and timm loads every weight of it")


if __name__ == "__main__":
    main()
