"""From a folder of images to a backbone that timm loads, through a running service."""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from dasl_core.data.canvases import Canvases
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.views import central_view, render
from dasl_core.methods import build_method
from dasl_core.spec import ResolvedJobSpec
from dasl_core.standalone.console import ConsoleReporter
from dasl_core.standalone.inputs import DataOptions
from dasl_core.standalone.main import train
from dasl_core.train.serialization import load_state
from service.client import Client
from service.client.sync.models import Dataset, Job
from service.wire.checkpoints import CheckpointView
from tests.e2e.conftest import Images
from tests.support.exports import code_of
from tests.support.polling import until
from tests.support.running_service import CLASSES, Served
from tests.support.tracking import scalars

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]

EPOCHS, STEPS = 3, 20

# The model card's code, run without this project and without Python's `site` on the path.
BEFORE_CARD = """
import sys
sys.path.append(sys.argv[1])
import importlib.util
assert all(importlib.util.find_spec(x) is None for x in ("dasl_core", "service", "workers"))
"""
AFTER_CARD = """
import numpy, torch
with torch.no_grad():
    numpy.save("features.npy", model(torch.from_numpy(numpy.load("images.npy"))).numpy())
"""


@pytest.fixture(scope="module")
def final(client: Client, main_job: Job) -> CheckpointView:
    [checkpoint] = [c for c in client.jobs.checkpoints(main_job.id) if c.final]
    return checkpoint


@pytest.fixture(scope="module")
def downloaded(
    client: Client, final: CheckpointView, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("download")
    client.checkpoints.download(final.id, folder)
    return folder


def test_job_verifies_from_its_checkpoints(served: Served, final: CheckpointView) -> None:
    command = [sys.executable, "-m", "service.cli", "verify", final.job_id, "--windows", "1"]
    server = {"DASL_URL": served.url, "DASL_TOKEN": served.token}
    verified = subprocess.run(command, env=os.environ | server, capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "within a tolerance, because of other " in verified.stdout  # one rank in place of two
    verification = served.client.checkpoints.get(final.id).verification
    assert verification is not None
    assert verification.passed
    assert verification.summary in verified.stdout


def test_broken_images_are_listed_with_reasons(pictures: Dataset, images: Images) -> None:
    report = pictures.report
    assert report is not None
    assert report.num_images == images.usable
    assert report.num_skipped == len(images.broken)
    reasons = {skipped.path: skipped.reason for skipped in report.skipped}
    assert reasons.keys() == images.broken.keys()
    for path, reason in images.broken.items():
        assert reason in reasons[path]
    assert report.class_names == list(CLASSES)
    assert pictures.facts is not None
    sizes = {"num_images": images.usable, "num_classes": 4, "median_size": 24}
    assert sizes.items() <= pictures.facts.items()
    assert (pictures.facts["bands"], pictures.facts["dtype"]) == (3, "uint16")


def test_api_answers_about_a_job_agree(client: Client, main_job: Job) -> None:
    job = main_job
    total = EPOCHS * STEPS
    assert (job.status, job.attempt, job.restarts, job.error) == ("succeeded", 1, 0, None)
    assert job.progress is not None
    assert (job.progress.step, job.progress.total_steps) == (total, total)
    assert job.resolved is not None
    ResolvedJobSpec.model_validate(job.resolved)
    assert '"auto"' not in json.dumps(job.resolved)

    # The stream of an ended job sends the whole history, then ends.
    events = list(client.jobs.stream_events(job.id))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    phases = [event.data["phase"] for event in events if event.type == "phase" and event.data]
    assert phases == ["ranks", "reading", "baselines", "training", "final"]
    [placement] = [event.data for event in events if event.type == "placement"]
    [node] = client.cluster().nodes
    assert placement == {
        "attempt": 1,
        "driver": node.id,
        "nodes": [{"id": node.id, "address": node.address, "ranks": [0, 1]}],
    }
    moves = [event.data["to"] for event in events if event.type == "status" and event.data]
    assert moves == ["queued", "starting", "running", "succeeded"]

    metrics = client.jobs.metrics(job.id, max_points=10 * total)
    assert metrics.step == list(range(1, total + 1))
    values = {name: np.array(column, dtype=float) for name, column in metrics.values.items()}
    np.testing.assert_allclose(values["loss"], values["loss_simclr"] + values["loss_dar"])
    assert values["loss"][-STEPS:].mean() < values["loss"][:STEPS].mean()
    assert job.progress.loss == pytest.approx(values["loss"][-1])

    evaluations = client.jobs.evaluations(job.id)
    assert [(e.subject, e.step) for e in evaluations] == [
        ("raw", 0),
        ("untrained", 0),
        *(("backbone", STEPS * epoch) for epoch in range(1, EPOCHS + 1)),
    ]
    assert all(0 <= e.metrics["recall_at_1"] <= 1 for e in evaluations)

    checkpoints = client.jobs.checkpoints(job.id)
    assert [(c.step, c.final) for c in checkpoints] == [
        (STEPS * epoch, epoch == EPOCHS) for epoch in range(1, EPOCHS + 1)
    ]
    [attempt] = client.jobs.attempts(job.id)
    assert attempt.state == "succeeded"
    log = until(lambda: client.jobs.logs(job.id) or None, "the log")
    assert "RayTrainWorker" in log
    assert "heartbeat" not in log, "a line for each would drown what people look for"


@pytest.mark.slow
def test_training_without_a_service_gives_the_same_metrics(
    client: Client, main_job: Job, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one rank instead of two, whose rounding grows with every step: so only the first ones."""
    steps, progress = [0], ConsoleReporter.progress

    def noted(reporter: ConsoleReporter, report: dict[str, Any]) -> None:
        steps.append(report.get("step", 0))
        progress(reporter, report)

    def desired(reporter: ConsoleReporter) -> str:
        return "cancel" if steps[-1] >= 5 else "run"

    monkeypatch.setattr(ConsoleReporter, "progress", noted)
    monkeypatch.setattr(ConsoleReporter, "desired", desired)
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "spec.json").write_text(json.dumps(main_job.resolved))
    assert train(tmp_path / "spec.json", DataOptions(str(images.root)), tmp_path / "out", []) == 130
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    ours = [json.loads(line)["values"] for line in lines]
    theirs = client.jobs.metrics(main_job.id, max_points=10_000).values
    for name in ("loss", "loss_simclr", "loss_dar", "lr"):
        values = [point[name] for point in ours[:5]]
        expected = np.array(theirs[name][:5], dtype=float)
        np.testing.assert_allclose(values, expected, rtol=1e-4, err_msg=name)
    (checkpoint,) = (tmp_path / "out" / "checkpoints").iterdir()
    evaluations = json.loads((checkpoint / "metrics.json").read_text())["evaluations"]
    assert [evaluation["subject"] for evaluation in evaluations] == ["raw", "untrained"]
    for mine, reported in zip(evaluations, client.jobs.evaluations(main_job.id), strict=False):
        assert mine["subject"] == reported.subject
        assert mine["metrics"] == pytest.approx(reported.metrics, rel=1e-4)


def test_checkpoint_downloads_whole_and_by_range(
    served: Served, final: CheckpointView, downloaded: Path, main_job: Job, client: Client
) -> None:
    names = {file.name for file in final.files}
    assert {"backbone.safetensors", "model.json", "metrics.json", "README.md"} <= names
    assert {path.name for path in downloaded.iterdir()} >= names
    for file in final.files:
        content = (downloaded / file.name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)

    whole = (downloaded / "backbone.safetensors").read_bytes()
    headers = {"Authorization": f"Bearer {served.token}"}
    path = f"/v1/checkpoints/{final.id}/files/backbone.safetensors"
    with httpx.Client(base_url=served.url, headers=headers) as http:
        part = http.get(path, headers={"Range": "bytes=1000-1999"})
        assert part.status_code == 206
        assert part.content == whole[1000:2000]
        assert part.headers["Content-Range"] == f"bytes 1000-1999/{len(whole)}"
        rest = http.get(path, headers={"Range": "bytes=2000-", "If-Range": part.headers["ETag"]})
        assert (rest.status_code, rest.content) == (206, whole[2000:])

    said = json.loads((downloaded / "metrics.json").read_text())
    assert said["step"] == EPOCHS * STEPS
    reported = [(e.subject, e.step, e.metrics) for e in client.jobs.evaluations(main_job.id)]
    assert [(e["subject"], e["step"], e["metrics"]) for e in said["evaluations"]] == reported
    losses = client.jobs.metrics(main_job.id, name="loss", max_points=10_000).values["loss"]
    means = np.array(losses, dtype=float).reshape(EPOCHS, STEPS).mean(axis=1)
    np.testing.assert_allclose(said["epoch_losses"], means)


def test_timm_loads_checkpoint_with_same_features(
    downloaded: Path, main_job: Job, images: Images, tmp_path: Path
) -> None:
    spec = ResolvedJobSpec.model_validate(main_job.resolved)
    size = spec.backbone.image_size
    assert isinstance(size, int)
    index = ingest_folder(images.root)
    canvases = Canvases(index, size, 3, cache=tmp_path, threads=1)
    pixels, valid_hw = canvases.read(range(64))
    canvases.close()
    normalization = spec.backbone.normalization
    batch = render(pixels, valid_hw, central_view(valid_hw), size, torch.float32, normalization)
    # The weights from which training would resume, not the exported ones.
    method = build_method(spec)
    method.load_state_dict(load_state(downloaded)["method"])
    method.eval()
    with torch.no_grad():
        features = method.backbone(batch).numpy()
    assert features.std(axis=0).max() > 0

    np.save(downloaded / "images.npy", batch.numpy())
    (downloaded / "load.py").write_text(BEFORE_CARD + code_of(downloaded) + AFTER_CARD)
    subprocess.run(
        [sys.executable, "-I", "-S", "load.py", sysconfig.get_path("purelib")],
        cwd=downloaded,
        check=True,
    )
    loaded = np.load(downloaded / "features.npy")
    np.testing.assert_allclose(loaded, features, rtol=0, atol=1e-6)


def test_plots_are_artifacts_of_the_job(client: Client, main_job: Job, tmp_path: Path) -> None:
    artifacts = client.jobs.artifacts(main_job.id)
    plots = [each for each in artifacts if "tfevents" not in each.name]
    assert len(artifacts) == len(plots) + 1
    assert {artifact.name: artifact.content_type for artifact in plots} == {
        **dict.fromkeys(["neighbours.json", "map.json", "histograms.json"], "application/json"),
        **dict.fromkeys(["neighbours.webp", "thumbnails.webp"], "image/webp"),
        **{
            f"{name}.png": "image/png"
            for name in ("curves", "distances", "map", "norms", "norms_by_group")
        },
        "neighbours.png": "image/png",
        "thumbnails.json": "application/json",
        "report.html": "text/html",
    }
    pictures = [artifact for artifact in plots if artifact.content_type == "image/png"]
    for file in client.jobs.download_artifacts(main_job.id, pictures, tmp_path):
        with Image.open(file) as picture:
            picture.load()
            assert picture.format == "PNG"
            assert min(picture.size) > 100


@pytest.mark.slow
def test_tensorboard_reads_the_event_file_of_the_job(
    client: Client, main_job: Job, tmp_path: Path
) -> None:
    [event] = [e for e in client.jobs.events(main_job.id) if e.type == "tracking"]
    address = (event.data or {})["address"]
    [artifact] = [a for a in client.jobs.artifacts(main_job.id) if a.name == address]
    client.jobs.download_artifacts(main_job.id, [artifact], tmp_path)
    losses = scalars(tmp_path).Scalars("train/loss")
    stored = client.jobs.metrics(main_job.id, name="loss")
    assert [each.step for each in losses] == stored.step == list(range(1, EPOCHS * STEPS + 1))
    assert [each.value for each in losses] == pytest.approx(stored.values["loss"], rel=1e-6)
