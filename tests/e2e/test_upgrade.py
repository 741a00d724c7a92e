"""Upgrade of a home folder of version 0.1: it is served, and its paused job resumes on a real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.client import Client
from tests.support.polling import PATIENCE_SECONDS
from tests.support.running_service import Served
from tests.support.service_v0_1 import OldService, resume_paused

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]


def test_paused_job_of_an_old_home_resumes_with_its_losses(
    served: Served, old_service: OldService, tmp_path: Path
) -> None:
    record = old_service.record
    # Before the service resumes it and replaces its checkpoint.
    alone = resume_paused(old_service, tmp_path).curve()
    assert served.token != record["admin_token"], "a new one; the old one is still good"
    with Client(served.url, record["admin_token"], patience=60) as client:
        job = client.jobs.resume(record["jobs"]["paused"]).wait(timeout=PATIENCE_SECONDS)
        assert (job.status, job.attempt, job.restarts) == ("succeeded", 2, 0)
        resumed = record["resumed"]
        curve = client.jobs.metrics(job.id, name="loss", max_points=10_000)
        losses = dict(zip(curve.step, curve.values["loss"], strict=True))
        expected = dict(resumed["losses"])
        assert losses.keys() == set(range(1, resumed["step"] + 1)) | expected.keys()
        # Views are drawn otherwise than in 0.1; with its views, losses are its losses
        # (`tests/service/test_upgrade.py`).
        assert [losses[step] for step in expected][: len(alone)] == alone
