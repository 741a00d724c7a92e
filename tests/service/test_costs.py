"""Estimates of time and disk, and warnings about them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import update

from dasl_core.spec.advice import apply
from service.db.models import ClusterSnapshot
from service.scheduling.dispatcher_report import DispatcherReport, StoreReport
from service.scheduling.packing import Worker
from tests.support.api_under_test import Api, snapshot

TRAIN = {"epochs": 10, "batch_size": 10}


def validated(api: Api, **changes: Any) -> dict[str, Any]:
    spec = {"dataset": "emoji", "train": TRAIN, **changes}
    answer = api.client.post("/v1/jobs/validate", json=spec)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_time_is_not_known_without_nodes_or_on_gpus_before_a_job_has_run(api: Api) -> None:
    api.dataset()
    assert validated(api)["estimate"]["seconds"] is None
    snapshot(api, cpus=4, gpus=1)
    assert validated(api)["estimate"]["seconds"] is None


def test_time_by_the_computation_of_the_network(api: Api) -> None:
    api.dataset()
    snapshot(api, cpus=4)
    seconds = validated(api)["estimate"]["seconds"]
    assert (seconds["source"], seconds["job_id"]) == ("computation", None)
    # 90 images, 10 epochs, 2 views, 3 passes of 1.8 G multiply-adds at 224 px; the small stem takes 16 times as many.
    flops = 90 * 10 * 2 * 3 * 2 * 1.8136e9 * (32 / 224) ** 2 * 16
    assert seconds["low"] == pytest.approx(flops / 4 / 80e9 + 15, rel=1e-3)
    assert seconds["high"] == pytest.approx(flops / 4 / 20e9 + 60, rel=1e-3)
    given = validated(api, resources={"cpus_per_worker": 1})["estimate"]["seconds"]
    assert given["low"] - 15 == pytest.approx(4 * (seconds["low"] - 15), rel=0.05)


@pytest.mark.parametrize("speed", ["fast", 0, -1.0, None])
def test_speed_that_is_no_positive_number_is_not_used(api: Api, speed: object) -> None:
    api.dataset()
    snapshot(api, cpus=4)
    worker = api.run(api.submit(train=TRAIN)["id"], numbers=Worker(4, 0))
    assert worker.post("heartbeat", progress={"images_per_second": speed}).status_code == 200
    source = validated(api)["estimate"]["seconds"]["source"]
    assert source == "computation"


def test_time_by_the_speed_of_an_earlier_job_that_did_the_same(api: Api) -> None:
    api.dataset()
    snapshot(api, cpus=4)
    job = api.submit(train=TRAIN)
    worker = api.run(job["id"], numbers=Worker(4, 0))
    assert worker.post("heartbeat", progress={"images_per_second": 9.0}).status_code == 200
    seconds = validated(api)["estimate"]["seconds"]
    assert seconds == {
        "low": 105.0,  # 900 images at 9 a second, times 0.9, and 15 s around
        "high": 210.0,
        "source": "earlier_job",
        "job_id": job["id"],
        "images_per_second": 9.0,
    }
    for changes in (
        {"backbone": {"image_size": 64}},
        {"resources": {"cpus_per_worker": 2}},
        {"method": {"name": "vicreg"}},
    ):
        assert validated(api, **changes)["estimate"]["seconds"]["source"] == "computation"
    other = api.token("read", "submit", tenant="other")
    api.dataset(tenant="other")
    answer = api.client.post(
        "/v1/jobs/validate", json={"dataset": "emoji", "train": TRAIN}, headers=other
    )
    assert answer.json()["estimate"]["seconds"]["source"] == "computation"


def test_first_look_is_advised_by_the_measured_speed(api: Api) -> None:
    api.dataset(num_images=2000, median_size=300)
    spec = {"dataset": "emoji"}
    snapshot(api, cpus=2, gpus=1)
    assert api.client.post("/v1/jobs/validate", json=spec).json()["advice"] == []
    snapshot(api, cpus=2)
    (computed,) = api.client.post("/v1/jobs/validate", json=spec).json()["advice"]
    job = api.client.post("/v1/jobs", json=apply(spec, computed["settings"])).json()
    worker = api.run(job["id"], numbers=Worker(2, 0))
    assert worker.post("heartbeat", progress={"images_per_second": 200.0}).status_code == 200
    (measured,) = api.client.post("/v1/jobs/validate", json=spec).json()["advice"]
    assert measured["settings"] == computed["settings"] | {"train.epochs": 40}
    assert computed["settings"]["train.epochs"] < 40


def test_enlarged_images_and_checkpoints_beyond_the_disk_are_warned_of(api: Api) -> None:
    api.dataset()
    assert validated(api)["warnings"] == []
    (enlarged,) = validated(api, backbone={"image_size": 512})["warnings"]
    assert enlarged.startswith("backbone.image_size: the images are enlarged to 512 px; half of")
    snapshot(api, cpus=4)
    now = datetime.now(UTC)
    report = DispatcherReport(
        started_at=now, store=StoreReport(checked_at=now, free_bytes=400_000_000)
    )
    with api.database.write() as session:
        session.execute(update(ClusterSnapshot).values(dispatcher=report.model_dump(mode="json")))
    (full,) = validated(api)["warnings"]
    assert full.startswith("checkpoints: 10 checkpoints take about 1.4 GB, and 0.4 GB are free.")
    assert validated(api, checkpoints={"keep_last": 2})["warnings"] == []
