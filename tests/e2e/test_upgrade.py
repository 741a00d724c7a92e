"""Upgrade of a home folder of version 0.1: it is served, and its paused job resumes on a real Ray."""

from __future__ import annotations

import pytest

from service.client import Client
from tests.support.polling import PATIENCE_SECONDS
from tests.support.running_service import Served
from tests.support.service_v0_1 import OldService, machine

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]


def test_paused_job_of_an_old_home_resumes_bit_exactly(
    served: Served, old_service: OldService
) -> None:
    record = old_service.record
    assert served.token != record["admin_token"], "a new one; the old one is still good"
    with Client(served.url, record["admin_token"], patience=60) as client:
        job = client.jobs.resume(record["jobs"]["paused"]).wait(timeout=PATIENCE_SECONDS)
        assert (job.status, job.attempt, job.restarts) == ("succeeded", 2, 0)
        resumed = record["resumed"]
        curve = client.jobs.metrics(job.id, name="loss", max_points=10_000)
        losses = dict(zip(curve.step, curve.values["loss"], strict=True))
        expected = dict(resumed["losses"])
        assert losses.keys() == set(range(1, resumed["step"] + 1)) | expected.keys()
        first = resumed["step"] + 1
        # On other processors the last bits differ, and after many steps more than these.
        assert losses[first] == pytest.approx(expected[first], rel=1e-3)
        if machine() == record["machine"]:
            assert {step: losses[step] for step in expected} == expected
            [final] = [each for each in client.jobs.checkpoints(job.id) if each.final]
            weights = {f.name: f.sha256 for f in final.files if f.name.endswith(".safetensors")}
            assert weights == resumed["weights"]
