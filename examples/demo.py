"""`make demo`: from a folder of images to a backbone that timm loads, through the real service.

Start the embedded service (SQLite, a local Ray, local files) in `build/demo`, register the example images,
train SimCLR with and without DAR, and compare their retrieval of fonts that are held out with raw pixels and
the untrained network.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dasl_core.spec import load_spec
from examples.fonts import unpack_fonts
from service.client import Client
from service.client.sync.models import Job

HERE = Path(__file__).parent
BUILD, MARK = Path("build/demo").absolute(), ".dasl-demo"
METRIC = "recall_at_1"
START_SECONDS = 180  # Ray's first import from a cold disk may take a minute
POLL_SECONDS = 2.0

# Load the checkpoint as a user does who has timm but not this project.
LOAD = """
import json, sys, timm, torch
from pathlib import Path
from safetensors.torch import load_file
for module in ("dasl_core", "service", "workers"):
    sys.modules[module] = None  # fail if the checkpoint needs any of them
folder = Path(sys.argv[1])
description = json.loads((folder / "model.json").read_text())
model = timm.create_model(**description["timm"])
model.load_state_dict(load_file(folder / "backbone.safetensors"))
model.eval()
size = description["preprocessing"]["image_size"]
print(tuple(model(torch.zeros(1, 3, size, size)).shape))
"""


def main() -> int:
    """Run the demo; return 0 if training beat raw pixels and the untrained network, else 1."""
    started = time.monotonic()
    if BUILD.exists() and not (BUILD / MARK).exists():  # `dasl train` may have written to it
        raise SystemExit(f"{BUILD} is not of an earlier demo. Move it away, or remove it.")
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    (BUILD / MARK).touch()
    images = unpack_fonts(BUILD)
    with service() as client:
        print("Reading the images ...", flush=True)
        dataset = client.datasets.add(images, "fonts")
        dataset = client.datasets.wait(dataset.id)
        facts = dataset.facts or {}
        print(f"{facts['num_images']} images of {facts['num_classes']} classes", flush=True)
        # Side by side: one job on two cores is little faster than on one.
        spec = load_spec(HERE / "demo.yaml") | {"resources": {"cpus_per_worker": 1}}
        jobs = {
            "trained": client.jobs.submit({**spec, "name": "fonts-simclr", "dar": None}),
            "trained_dar": client.jobs.submit(spec),
        }
        follow(client, jobs)
        ended = {key: client.jobs.wait(job.id) for key, job in jobs.items()}
        result = compare(client, ended)
        checkpoints = client.jobs.checkpoints(ended["trained_dar"].id)
        checkpoint = next(checkpoint for checkpoint in checkpoints if checkpoint.final)
        folder = BUILD / "checkpoint"
        client.checkpoints.download(checkpoint.id, folder)
        for earlier in checkpoints:
            if earlier.id != checkpoint.id:  # from which `dasl verify` repeats steps
                client.checkpoints.download(earlier.id, BUILD / "checkpoints" / earlier.id)
        job = ended["trained_dar"].id
        client.jobs.download_artifacts(job, client.jobs.artifacts(job), BUILD)
    shape = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)], check=True, capture_output=True, text=True
    ).stdout.strip()
    print(f"\nThe checkpoint in {folder} loads in timm; features of one image: {shape}")
    print(f"Report: {BUILD / 'report.html'}")
    print("Check the run: dasl verify build/demo --data build/demo/fonts --evaluate")
    (BUILD / "summary.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print_table(result)
    print(f"Took {time.monotonic() - started:.0f} s.")
    best_baseline = max(result["raw"], result["untrained"])
    if min(result["trained"], result["trained_dar"]) <= best_baseline:
        print("Training did not beat the baselines.", file=sys.stderr)
        return 1
    return 0


@contextmanager
def service() -> Iterator[Client]:
    """Run `dasl serve` on a free port with its own home, and stop it with all its processes at the end."""
    # Settings of the caller's own service must not apply to this one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DASL_")} | {
        "DASL_HOME": str(BUILD / "home"),
        "DASL_PORT": "0",
        "DASL_CACHE_DIR": str(BUILD / "cache"),
        "XDG_CONFIG_HOME": str(BUILD / "config"),
    }
    log = BUILD / "serve.log"
    config = BUILD / "config" / "dasl" / "config.toml"
    with log.open("w", encoding="utf-8") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "serve"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            print("Starting the service ...", flush=True)
            deadline = time.monotonic() + START_SECONDS
            while "Ready" not in log.read_text(encoding="utf-8"):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the service did not start:\n{log.read_text()}")
                time.sleep(0.2)
            connection = tomllib.loads(config.read_text(encoding="utf-8"))
            with Client(connection["url"], connection["token"]) as client:
                yield client
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


def follow(client: Client, jobs: dict[str, Job]) -> None:
    """Show the progress of all jobs until they have ended: live on a terminal, else as lines."""
    shown: dict[str, str] = {}
    live = sys.stdout.isatty()
    while True:
        now = {key: client.jobs.get(job.id) for key, job in jobs.items()}
        lines = {key: describe(job) for key, job in now.items()}
        if live:
            if shown:
                print(f"\x1b[{len(lines)}A", end="")
            print("\n".join(f"\x1b[2K{line}" for line in lines.values()), flush=True)
        else:
            for key, line in lines.items():
                if line != shown.get(key):
                    print(line, flush=True)
        shown = lines
        if all(job.done for job in now.values()):
            return
        time.sleep(POLL_SECONDS)


def describe(job: Job) -> str:
    """Format the progress of a job as one line."""
    progress = job.progress
    if progress is None or progress.step is None:
        return f"{job.name:18} {job.status}"
    recall = "" if progress.recall_at_1 is None else f"  R@1 {progress.recall_at_1:.3f}"
    return (
        f"{job.name:18} {job.status}  epoch {progress.epoch:.1f}/{progress.epochs}  "
        f"loss {progress.loss:.3f}  {progress.images_per_second:.0f} images/s{recall}"
    )


def compare(client: Client, jobs: dict[str, Job]) -> dict[str, Any]:
    """Return the held-out metric of both jobs and of the baselines, which are the same in both."""
    result: dict[str, Any] = {"metric": METRIC}
    for key, job in jobs.items():
        for evaluation in client.jobs.evaluations(job.id):
            if evaluation.subject != "backbone":
                result[evaluation.subject] = evaluation.metrics[METRIC]
        last = max(
            (e for e in client.jobs.evaluations(job.id) if e.subject == "backbone"),
            key=lambda e: e.step,
        )
        result[key] = last.metrics[METRIC]
    return result


def print_table(result: dict[str, Any]) -> None:
    """Print the four results."""
    rows = {
        "raw": "raw pixels",
        "untrained": "untrained backbone",
        "trained": "SimCLR",
        "trained_dar": "SimCLR + DAR",
    }
    print("\nZero-shot R@1 on fonts held out of training")
    for key, label in rows.items():
        print(f"  {label:20} {100 * result[key]:5.1f} %")


if __name__ == "__main__":
    # A closed terminal and a supervisor stop the service, too.
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    sys.exit(main())
