"""The page's form, `dasl submit` and `dasl init` give the same advice about the same images."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dasl_core.spec import JobSpec, apply_overrides, load_spec, resolve
from dasl_core.spec.advice import apply
from dasl_core.standalone import first_spec
from service.client import Client
from service.db.models import ClusterSnapshot
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport
from service.scheduling.nodes import Node
from tests.dasl_core.image_files import as_dicom
from tests.support.api_server import Service
from tests.support.command_line import run
from tests.support.training_world import ingest

# What fits 150 DICOM files of 160 px on one core.
EXPECTED = {
    "augment": {"flip": 0.0},
    "evaluate": {"holdout": {"fraction": 0.2}},
    "backbone": {"image_size": 96},
}


def one_core(service: Service) -> None:
    """Save a cluster of one node with one CPU."""
    now = datetime.now(UTC)
    saved = ClusterSnapshot(
        at=now,
        alive=True,
        nodes=[scheduling.stored_node(Node("n1", "127.0.0.1", 1, 0, 0, 0))],
        dispatcher=DispatcherReport(started_at=now).model_dump(mode="json"),
        total_cpus=1,
        total_gpus=0,
        used_cpus=0,
        used_gpus=0,
    )
    with service.database.write() as session:
        scheduling.save_snapshot(session, saved)


def test_form_and_commands_give_the_same_advice(
    service: Service, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(first_spec, "usable_cores", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    one_core(service)
    folder, output = tmp_path / "scans", tmp_path / "spec.yaml"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(150):
        pixels = random.integers(0, 4000, (160, 160), dtype=np.uint16)
        (folder / f"{number}.dcm").write_bytes(as_dicom(pixels))
    facts = ingest(folder).facts()
    service.ingest(client.datasets.add(str(folder), "scans"), **facts.model_dump(mode="json"))
    bare: dict[str, Any] = {"dataset": "scans"}
    plain = tmp_path / "plain.yaml"
    plain.write_text("dataset: scans\n")

    run("init", folder, "-o", output)
    of_form = client.jobs.validate(bare).advice
    submitted = run("submit", plain).stderr

    formed = bare
    for each in of_form:
        formed = apply(formed, each.settings)
        assert f"Advice: {each.field}: {each.reason} --set" in submitted
        assert each.reason in " ".join(output.read_text().replace("#", "").split())
    given = [word for word in submitted.split() if "=" in word]
    assert formed == apply_overrides(bare, given) == bare | EXPECTED
    initial = load_spec(output)
    for spec in (formed, initial):
        spec.pop("name", None)
        assert resolve(JobSpec.model_validate(spec), facts) == resolve(
            JobSpec.model_validate(bare | EXPECTED), facts
        )
    assert client.jobs.validate(formed).advice == []
    assert "Advice" not in run("submit", output).stderr
    assert "Advice: augment.flip" in run("validate", plain).stderr
