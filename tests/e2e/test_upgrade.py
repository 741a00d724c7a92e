"""Upgrade of a home folder of version 0.1: it is served, and its paused job resumes on a real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.client import Client
from service.db.session import make_engine
from tests.support.polling import PATIENCE_SECONDS
from tests.support.running_service import serving
from tests.support.service_v0_1 import machine, relocate, unpack

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]


def test_paused_job_of_an_old_home_resumes_bit_exactly(tmp_path: Path) -> None:
    old = unpack(tmp_path / "moved")
    engine = make_engine(f"sqlite:///{old.home / 'dasl.db'}")
    relocate(engine, old)
    engine.dispose()
    with (
        serving(tmp_path, old.home) as (_, url, token),
        Client(url, old.record["admin_token"], patience=60) as client,
    ):
        assert token != old.record["admin_token"], "a new one; the old one is still good"
        # The running attempts were lost with their Ray, and would be retried first.
        for name in ("running", "starting", "queued", "clone"):
            client.jobs.cancel(old.record["jobs"][name])
        job = client.jobs.resume(old.record["jobs"]["paused"]).wait(timeout=PATIENCE_SECONDS)
        assert (job.status, job.attempt, job.restarts) == ("succeeded", 2, 0)
        resumed = old.record["resumed"]
        curve = client.jobs.metrics(job.id, name="loss", max_points=10_000)
        losses = dict(zip(curve.step, curve.values["loss"], strict=True))
        expected = dict(resumed["losses"])
        assert losses.keys() == set(range(1, resumed["step"] + 1)) | expected.keys()
        first = resumed["step"] + 1
        # On other processors the last bits differ, and after many steps more than these.
        assert losses[first] == pytest.approx(expected[first], rel=1e-3)
        if machine() == old.record["machine"]:
            assert {step: losses[step] for step in expected} == expected
            [final] = [each for each in client.jobs.checkpoints(job.id) if each.final]
            weights = {f.name: f.sha256 for f in final.files if f.name.endswith(".safetensors")}
            assert weights == resumed["weights"]
