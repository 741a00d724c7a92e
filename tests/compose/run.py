"""Starts docker-compose.yml for real and holds it to what docs/operations.md says of it.

    python -m tests.compose.run [--compose "docker compose"] [--port 18000] [--output FILE]

It needs an engine with compose, this repository's environment (`make setup`) to load the trained backbone,
and a quarter of an hour; `make compose-test` runs it. A deployment of yours on the same machine is not
touched: project, volumes, port and secrets are its own, and all but the images are removed at the end.

Refused without secrets; built; up and ready; nothing published but the API, nobody is root, no torch beside
the API, no door without its token; a job that goes on through the death of each container in turn; its
backbone loads in timm; down and up again, and all is still there.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import timm
import torch
from safetensors.torch import load_file

from benchmarks.machine import machine
from examples.emoji import unpack_emoji
from service.client import Client, DaslError
from service.client.models import Checkpoint, Job

T = TypeVar("T")

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
# Until each, training must have gone on; so the job outlives all of them.
STEPS_BETWEEN_KILLS = 6
PATIENCE_SECONDS = 600


def until(found: Callable[[], T | None], what: str) -> T:
    """Poll until something is found."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (result := found()) is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {PATIENCE_SECONDS} s")
        time.sleep(0.5)
    return result


def check(holds: bool, what: str) -> None:
    """One thing that must be so; the run ends where it is not."""
    print(f"{'ok  ' if holds else 'FAIL'}  {what}", flush=True)
    if not holds:
        raise SystemExit(1)


@dataclass(frozen=True)
class Deployment:
    """A project of its own, with secrets of its own."""

    command: list[str]
    secrets: Path
    url: str

    def compose(self, *arguments: str, fails: bool = False) -> str:
        """Run a compose command; its output. `fails`: it must, and its errors are given."""
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
        """What a command lists as JSON: an array, or a document a line, as versions differ."""
        text = self.compose(*arguments, "--format", "json").strip()
        found = json.loads(text) if text.startswith("[") else map(json.loads, text.splitlines())
        return list(found)

    def python(self, service: str, code: str) -> str:
        """What a Python program prints in a running container."""
        return self.compose("exec", "-T", service, "python", "-c", code).strip()

    def until_ready(self) -> None:
        """Wait until the service says that work will be done."""

        def ready() -> bool | None:
            try:
                return httpx.get(f"{self.url}/readyz", timeout=5).is_success or None
            except httpx.HTTPError:
                return None

        until(ready, "/readyz says that the service is ready")


def main() -> None:
    """Run everything that the module's text says, and write the figures."""
    parser = argparse.ArgumentParser(description="Start docker-compose.yml for real and test it.")
    parser.add_argument("--compose", default="docker compose", help="how compose is called here")
    parser.add_argument("--port", type=int, default=18000, help="of loopback, for the API")
    parser.add_argument(
        "--seconds", type=float, default=400, help="that the job would train if nothing were killed"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/compose.json")
    given = parser.parse_args()
    figures: dict[str, Any] = {"machine": machine("ray", "torch")}
    with (
        tempfile.TemporaryDirectory(prefix="dasl-compose-") as folder,
        deployed(shlex.split(given.compose), Path(folder), given.port) as deployment,
    ):
        figures |= start(deployment)
        look_for_doors(deployment)
        look_for_torch(deployment)
        figures |= measure(deployment)
        token = deployment.compose("exec", "-T", "api", "dasl", "db", "admin-token", "test").strip()
        with Client(deployment.url, token, patience=60) as client:
            client.datasets.add("/data/emoji", "emoji").wait()
            job = submit(client, epochs_of(client, given.seconds))
            figures["recovery"] = outlive(deployment, client, job)
            job = until(lambda: ended(client, job), "the job ends")
            check(job.status == "succeeded", f"the job succeeded, with {job.restarts} restarts")
            figures["job"] = {"attempts": job.attempt, "restarts": job.restarts}
            load(client, final(client, job), Path(folder) / "first")
            deployment.compose("down")
            deployment.compose("up", "--detach", "--wait")
            load(client, final(client, job), Path(folder) / "second")
    given.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


@contextmanager
def deployed(command: list[str], folder: Path, port: int) -> Iterator[Deployment]:
    """A deployment with images to train on, not started yet; removed at the end."""
    data, secrets = folder / "data", folder / ".env"
    unpack_emoji(data, CLASSES)
    # The containers' user is another one.
    for each in (folder, data, *data.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    deployment = Deployment(command, secrets, f"http://127.0.0.1:{port}")
    secrets.touch()
    refusal = deployment.compose("up", "--detach", fails=True)
    check(
        "make_env.py" in refusal, "without secrets nothing starts, and it is said how to make them"
    )
    secrets.unlink()
    make = [sys.executable, "docker/make_env.py", "--data", str(data), "--output", str(secrets)]
    subprocess.run(make, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    check(secrets.stat().st_mode & 0o777 == 0o600, "the secrets are for their owner's eyes")
    check(
        subprocess.run(make, cwd=ROOT, capture_output=True).returncode == 1, "and stay as they are"
    )
    with secrets.open("a", encoding="utf-8") as file:
        file.write(f"DASL_PORT={port}\n")
    try:
        yield deployment
    except BaseException:
        print(deployment.compose("ps", "--all"), deployment.compose("logs", "--tail", "40"))
        raise
    finally:
        deployment.compose("--profile", "*", "down", "--volumes", "--remove-orphans")


def start(deployment: Deployment) -> dict[str, float]:
    """Build and start; how long each took."""
    began = time.monotonic()
    deployment.compose("build")
    built = time.monotonic()
    deployment.compose("up", "--detach")
    deployment.until_ready()
    ready = time.monotonic()
    deployment.compose("up", "--detach", "--wait")
    check(True, "every container is healthy")
    return {"build_seconds": round(built - began, 1), "ready_seconds": round(ready - built, 1)}


def look_for_doors(deployment: Deployment) -> None:
    """What can be reached, by whom, and as whom it runs."""
    listed = deployment.listed("ps", "--all")
    published = {
        (each["Service"], port["URL"])
        for each in listed
        for port in each["Publishers"] or ()
        if port["PublishedPort"]
    }
    check(published == {("api", "127.0.0.1")}, "only the API is published, on loopback")
    check(
        [each["ExitCode"] for each in listed if each["Service"] == "migrate"] == [0],
        "the tables were made, once",
    )
    for service in SERVICES:
        user = deployment.compose("exec", "-T", service, "id", "-u").strip()
        check(user not in ("", "0"), f"{service} runs as user {user}, not as root")
    ask = "import urllib.request as u, urllib.error as e\ntry: print(u.urlopen({!r}).status)\nexcept e.HTTPError as r: print(r.code)"
    jobs = deployment.python("api", ask.format("http://ray-head:8265/api/jobs/"))
    check(jobs == "401", "Ray takes nothing without its token")
    connect = (
        "import psycopg\n"
        "for password in ('', 'dasl', 'postgres'):\n"
        " try: psycopg.connect(host='postgres', user='dasl', dbname='dasl', password=password)\n"
        " except psycopg.OperationalError: continue\n"
        " print(password)"
    )
    check(deployment.python("api", connect) == "", "PostgreSQL has no default password")


def look_for_torch(deployment: Deployment) -> None:
    """The server's image has neither torch nor Ray."""
    find = "import importlib.util as u; print([m for m in ('torch', 'ray') if u.find_spec(m)])"
    check(deployment.python("api", find) == "[]", "no torch and no Ray beside the API")
    check(deployment.python("worker", find) == "['torch', 'ray']", "both in the worker")


def measure(deployment: Deployment) -> dict[str, Any]:
    """Sizes of the images, and memory of each container while nothing is to be done."""
    of = {each["Name"]: each["Service"] for each in deployment.listed("ps")}
    memory = {
        of[each["Name"]]: each["MemUsage"].partition("/")[0].strip()
        for each in deployment.listed("stats", "--no-stream")
        if each["Name"] in of
    }
    sizes = {each["Repository"]: each["Size"] for each in deployment.listed("images")}
    return {"image_bytes": sizes, "idle_memory": memory}


def submit(client: Client, epochs: int) -> Job:
    """A job that trains for so long."""
    return client.jobs.submit({**SPEC, "train": {**SPEC["train"], "epochs": epochs}})


def epochs_of(client: Client, seconds: float) -> int:
    """How many epochs take so long here; a short job tells."""
    short = submit(client, 2).wait()
    progress = short.progress
    assert progress is not None
    speed, steps = progress.images_per_second, progress.total_steps
    check(speed is not None, f"a short job succeeded, at {speed} images a second")
    assert speed is not None
    assert steps is not None
    images = steps / 2 * int(SPEC["train"]["batch_size"])
    return max(20, round(seconds * speed / images))


def outlive(deployment: Deployment, client: Client, job: Job) -> dict[str, Any]:
    """Kill each container in turn under the job; seconds until all is ready, and training, again."""
    seconds = {}
    for service in SERVICES:
        begun = until(lambda: trained(client, job, 0), "the job trains")
        until(lambda: trained(client, job, begun + STEPS_BETWEEN_KILLS), "it goes on")  # noqa: B023
        before = client.jobs.get(job.id)
        deployment.compose("kill", "--signal", "KILL", service)
        killed = time.monotonic()
        deployment.compose("start", service)
        deployment.until_ready()
        ready = time.monotonic()
        reached = before.progress.step or 0 if before.progress else 0
        until(lambda: trained(client, job, reached + 1), "it goes on")  # noqa: B023
        now = client.jobs.get(job.id)
        check(now.status == "running", f"{service} was killed, and the job goes on")
        assert now.attempt is not None
        assert before.attempt is not None
        seconds[service] = {
            "ready_seconds": round(ready - killed, 1),
            "beyond_last_step_seconds": round(time.monotonic() - killed, 1),
            "new_attempts": now.attempt - before.attempt,
        }
    # By itself this time: compose takes a `kill` to be what somebody wanted.
    deployment.compose("exec", "-T", "api", "sh", "-c", "kill -TERM 1")
    deployment.until_ready()
    check(True, "a container that ends is started again")
    return seconds


def trained(client: Client, job: Job, step: int) -> int | None:
    """The step that the job has reached in the attempt that runs now, if it is this one or a later one."""
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
    """The job, once it has ended."""
    now = client.jobs.get(job.id)
    return now if now.done else None


def final(client: Client, job: Job) -> Checkpoint:
    """The last checkpoint of a training that has ended."""
    return next(each for each in client.jobs.checkpoints(job.id) if each.final)


def load(client: Client, checkpoint: Checkpoint, folder: Path) -> None:
    """Download a backbone and load it in timm, every weight of it."""
    client.checkpoints.download(checkpoint.id, folder)
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    model = timm.create_model(**about["timm"])
    exec("\n".join(about["stem"]), {"torch": torch, "model": model})
    model.load_state_dict(load_file(folder / "backbone.safetensors"), strict=True)
    check(True, "the checkpoint downloads, and timm loads every weight of it")


if __name__ == "__main__":
    main()
