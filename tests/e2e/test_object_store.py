"""A whole job whose images were uploaded and whose artifacts are on S3, with direct downloads."""

import hashlib
from pathlib import Path

import pytest

from service.artifacts.storage import Storage
from service.client import Client
from tests.support.polling import PATIENCE_SECONDS
from tests.support.running_service import serving, spec, write_images
from tests.support.s3_server import SECRET, S3Server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("services"), pytest.mark.timeout(1800)]


def test_job_on_s3_trains_resumes_and_is_downloaded(
    tmp_path: Path, s3_server: S3Server, s3_root: str
) -> None:
    home = tmp_path / "home"
    images = tmp_path / "images"
    write_images(images, 64)
    settings = {"DASL_ARTIFACTS_URI": s3_root, "DASL_PRESIGNED_DOWNLOADS": "true"}
    train = {"epochs": 2, "batch_size": 8, "checkpoint_every_epochs": 1}
    with (
        serving(tmp_path, home, on_terminal=False, **settings) as (_, url, token),
        Client(url, token, patience=60) as client,
    ):
        uploaded = client.datasets.upload(images, "images")
        assert uploaded.wait(timeout=PATIENCE_SECONDS).uri.startswith(s3_root)
        small = spec("images", train=train, resources={"workers": 1})
        job = client.jobs.submit(small).wait(timeout=PATIENCE_SECONDS, poll=0.5)
        assert job.status == "succeeded"
        checkpoints = list(client.jobs.checkpoints(job.id))
        assert [c.epoch for c in checkpoints if c.final] == [2]
        log = client.jobs.logs(job.id)
        assert "Starting 1 rank" in log
        for checkpoint in checkpoints:
            folder = tmp_path / checkpoint.id
            client.checkpoints.download(checkpoint.id, folder)
            for file in checkpoint.files:
                content = (folder / file.name).read_bytes()
                assert hashlib.sha256(content).hexdigest() == file.sha256
        artifacts = client.jobs.artifacts(job.id)
        assert artifacts
        client.jobs.download_artifacts(job.id, artifacts, tmp_path / "artifacts")

        first = min(checkpoints, key=lambda checkpoint: checkpoint.step)
        branch = client.jobs.clone(job.id, checkpoint=first.id, changes={"name": "branch"})
        assert branch.wait(timeout=PATIENCE_SECONDS, poll=0.5).status == "succeeded"
        assert first.id in str([event.data for event in client.jobs.events(branch.id)])
    assert not (home / "artifacts").exists()
    storage = Storage(s3_root)
    names = storage.file_sizes(storage.attempt_uri(job.id, 1))
    assert len(names) < 12
    assert all(name.startswith("driver.log.") for name in names), names
    for path in home.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
