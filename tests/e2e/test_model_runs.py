"""A finished model in a running service with Ray: evaluated, embedded with, searched and exported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

from dasl_core.data.canvases import Canvases
from dasl_core.data.image_set import ImageSet
from dasl_core.data.ingest import ingest_folder
from dasl_core.embedding import load_backbone
from service.cli.app import app
from service.client.sync.models import Job
from tests.e2e.conftest import Images
from tests.support.running_service import Served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]


def test_finished_model_at_work(
    served: Served, main_job: Job, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_URL", served.url)
    monkeypatch.setenv("DASL_TOKEN", served.token)

    def run(*command: str) -> Any:
        result = CliRunner().invoke(app, [*command, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    final = served.client.checkpoints.get("final", job=main_job.id)
    file = tmp_path / "vectors.parquet"
    embedding = run("embed", main_job.id, "--dataset", served.dataset, "-o", str(file))
    assert (embedding["checkpoint_id"], embedding["state"]) == (final.id, "succeeded")
    assert embedding["result"]["images"] == images.usable

    # As the evaluations of training compute them, from the image files.
    served.client.checkpoints.download(final.id, tmp_path / "checkpoint")
    backbone = load_backbone(tmp_path / "checkpoint", torch.device("cpu"))
    index = ingest_folder(images.root)
    spec = backbone.spec
    canvases = Canvases(
        index, spec.backbone.image_size, spec.backbone.in_channels, cache=None, threads=1
    )
    every = ImageSet(canvases, np.arange(len(index)))
    expected = backbone.encoder().features(backbone.network, every)
    canvases.close()
    rows = pyarrow.parquet.read_table(file).to_pydict()
    keys = rows["key"]
    assert keys == list(index.paths)
    np.testing.assert_allclose(rows["features"], expected, atol=1e-5)

    # Neighbors: of a named image and of the same image as a file, which nearest is itself.
    named = run("neighbors", final.id, keys[3], "-k", "5")["neighbors"]
    assert keys[3] not in [each["key"] for each in named]
    picture = images.root / keys[3]
    uploaded = run("neighbors", final.id, str(picture), "-k", "6")["neighbors"]
    assert uploaded[0]["similarity"] == pytest.approx(1, abs=1e-4)
    assert {each["key"] for each in named} <= {each["key"] for each in uploaded}
    problem = CliRunner().invoke(app, ["neighbors", final.id, "nowhere.png"])
    assert problem.exit_code == 1
    assert "neither a file" in problem.output

    evaluation = run("evaluate", final.id, "--dataset", served.dataset, "--set", "clustering=true")
    metrics = evaluation["result"]["metrics"]
    assert set(metrics) == {"raw", "backbone"}
    [measured] = [
        each.metrics
        for each in served.client.jobs.evaluations(main_job.id)
        if each.subject == "backbone" and each.step == final.step
    ]
    # The same images are held out as in the training.
    for name in ("knn_top1", "recall_at_1", "effective_rank"):
        assert metrics["backbone"][name] == pytest.approx(measured[name], rel=1e-4)
    assert "nmi" in metrics["backbone"]

    # No folder for the hub can say that a ResNet has the stem for small images.
    refused = CliRunner().invoke(app, ["export", final.id, "--format", "hf"])
    assert (
        "use backbone.safetensors with the lines in README.md, or the format onnx" in refused.output
    )
    export = run("export", final.id, "--format", "onnx", "-o", str(tmp_path / "backbone.onnx"))
    assert Path(export["path"]).stat().st_size > 0
    assert served.client.storage().model_runs.count == 2  # the embedding and the export
    done = CliRunner().invoke(app, ["delete", embedding["id"], "--yes"])
    assert done.exit_code == 0, done.output
