"""Experiments over the API: submitted whole or not at all, shown, compared, cancelled, deleted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.db.models import Experiment, Job
from service.dispatcher.garbage import Garbage
from service.experiments.results import EFFECTS_NOTE
from tests.support.api_under_test import Api, check_references, refused, snapshot

WHICH_VIEWS = Path(__file__).parents[2] / "examples" / "which-views.yaml"
REQUEST: dict[str, Any] = {
    "name": "pays",
    "spec": {"dataset": "emoji", "method": {"name": "simclr"}, "tags": {"team": "vision"}},
    "variants": {"baseline": {}, "dar": {"dar": {"weight": 0.5}}},
    "seeds": [0, 1, 2],
}
# R@1 by variant and seed, of 10 held-out images: with DAR, two more are right.
VALUES = {("baseline", s): 0.5 + s / 10 for s in range(3)} | {
    ("dar", s): 0.7 + s / 10 for s in range(3)
}


def submit(api: Api, key: str | None = None, **changes: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return api.client.post("/v1/experiments", json={**REQUEST, **changes}, headers=headers)


def submitted(api: Api, **changes: Any) -> dict[str, Any]:
    answer = submit(api, **changes)
    assert answer.status_code == 201, answer.text
    experiment: dict[str, Any] = answer.json()
    assert answer.headers["location"] == path(experiment)
    return experiment


def path(experiment: Mapping[str, Any], *parts: str) -> str:
    return "/".join(("/v1/experiments", experiment["id"], *parts))


def shown(api: Api, experiment: Mapping[str, Any]) -> Any:
    answer = api.client.get(path(experiment))
    assert answer.status_code == 200, answer.text
    return answer.json()


def finish(
    api: Api,
    job: str,
    outcome: str = "succeeded",
    raw: Mapping[str, float] | None = None,
    error_type: str = "ValueError",
    **metrics: float,
) -> None:
    """Run a job, with the metrics of an early and of the last evaluation, and those of raw pixels, if there are any."""
    worker = api.run(job)
    if raw is not None:
        report = {"step": 0, "epoch": 0, "subject": "raw", "metrics": dict(raw)}
        assert worker.post("evaluations", **report).is_success
    for step, subject, part in ((0, "untrained", 0.1), (5, "backbone", 0.5), (10, "backbone", 1.0)):
        measured = {name: value * part for name, value in metrics.items()}
        report = {"step": step, "epoch": step, "subject": subject, "metrics": measured}
        assert worker.post("evaluations", **report).is_success
    error = {"type": error_type, "message": "x"} if outcome == "failed" else None
    body = (
        {"outcome": outcome, "retryable": False, "error": error} if error else {"outcome": outcome}
    )
    answer = worker.post("finish", **body)
    assert answer.is_success, answer.text


def finish_all(api: Api, experiment: Mapping[str, Any]) -> None:
    for member in experiment["jobs"]:
        value = VALUES[member["variant"], member["seed"]]
        finish(api, member["id"], recall_at_1=value, effective_rank=10 + 3 * value)


def count(api: Api) -> tuple[int, int]:
    """Number of stored experiments and jobs."""
    with api.database.read() as session:
        return session.query(Experiment).count(), session.query(Job).count()


def test_submission_queues_a_job_for_each_variant_and_seed(api: Api) -> None:
    dataset = api.dataset()
    experiment = submitted(api)
    members = [(each["variant"], each["seed"], each["status"]) for each in experiment["jobs"]]
    assert members == [(v, s, "queued") for v in ("baseline", "dar") for s in (0, 1, 2)]
    assert (experiment["baseline"], experiment["statuses"]) == ("baseline", {"queued": 6})
    assert not experiment["done"]
    held_out = {each["name"]: each["held_out_images"] for each in experiment["variants"]}
    assert held_out == {"baseline": 10, "dar": 10}

    job = api.client.get(f"/v1/jobs/{experiment['jobs'][4]['id']}").json()
    assert job["experiment"] == {"id": experiment["id"], "variant": "dar", "seed": 1}
    assert job["name"] == "pays, dar, seed 1"
    assert job["spec"]["train"] == {"seed": 1}
    assert job["resolved"]["train"]["seed"] == 1
    assert job["resolved"]["name"] == job["name"]
    assert (job["spec"]["dar"], job["resolved"]["dar"]["weight"]) == ({"weight": 0.5}, 0.5)
    assert (job["dataset"]["id"], job["tags"]) == (dataset, {"team": "vision"})
    # All variants with one seed before the next seed.
    queue = [job["experiment"] for job in api.client.get("/v1/jobs").json()["data"]][::-1]
    assert [each["seed"] for each in queue] == [0, 0, 1, 1, 2, 2]


def test_validation_sums_up_what_all_jobs_take_and_stores_nothing(api: Api) -> None:
    api.dataset()
    answer = api.client.post("/v1/experiments/validate", json=REQUEST)
    assert answer.status_code == 200, answer.text
    assert answer.json()["estimate"]["seconds"] is None  # no node is known
    snapshot(api, cpus=4)
    reader = api.token("read")
    body = api.client.post("/v1/experiments/validate", json=REQUEST, headers=reader).json()
    costs = [each["estimate"] for each in body["variants"]]
    assert [each["name"] for each in body["variants"]] == ["baseline", "dar"]
    assert [each["resolved"]["dar"] is None for each in body["variants"]] == [True, False]
    total = body["estimate"]
    assert total["jobs"] == 6
    for bound in ("low", "high"):
        expected = 3 * sum(each["seconds"][bound] for each in costs)
        assert total["seconds"][bound] == pytest.approx(expected)
    assert total["checkpoints_bytes"] == 3 * sum(each["checkpoints_bytes"] for each in costs)
    assert count(api) == (0, 0)

    experiment = submitted(api)
    assert experiment["estimate"] == total
    bad = api.client.post(
        "/v1/experiments/validate", json=REQUEST | {"variants": {"b": {"train": {"epochs": 0}}}}
    )
    assert [each["field"] for each in bad.json()["errors"]] == ["variants.b.train.epochs"]


def test_jobs_are_listed_by_experiment(api: Api) -> None:
    api.dataset()
    first, other, alone = submitted(api), submitted(api, seeds=[7]), api.submit()
    assert alone["experiment"] is None

    def listed(**params: Any) -> list[str]:
        answer = api.client.get("/v1/jobs", params=params)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["data"]]

    ids = {each["id"] for each in first["jobs"]}
    assert set(listed(experiment=first["id"])) == ids
    assert set(listed(experiment=first["id"], status="queued", tag="team:vision")) == ids
    assert listed(experiment=first["id"], status="failed") == []
    assert len(listed(experiment=other["id"])) == 2
    assert listed(experiment="exp_unknown") == []
    summaries = api.client.get("/v1/experiments", params={"limit": 1}).json()
    assert [each["id"] for each in summaries["data"]] == [other["id"]]
    after = api.client.get("/v1/experiments", params={"after": summaries["next"]}).json()["data"]
    assert [(each["id"], each["statuses"]) for each in after] == [(first["id"], {"queued": 6})]
    refused(api.client.get("/v1/experiments", params={"after": "job_1"}), 422, "after")


def test_experiment_is_found_by_id_name_beginning_and_last(api: Api) -> None:
    api.dataset()
    first, second = submitted(api, name="birds", seeds=[0]), submitted(api, name="cats", seeds=[0])
    check_references(api, "/v1/experiments", first, second)
    reader, foreign = api.token("read"), api.token("read", tenant="other")
    refused(api.client.get("/v1/experiments/last", headers=reader), 404, None, "not-found")
    for reference in (first["id"], first["id"][:29], "birds", "last", "exp_", "a%00b"):
        answer = api.client.get(f"/v1/experiments/{reference}", headers=foreign)
        refused(answer, 404, None, "not-found")

    again = submitted(api, name="birds", seeds=[0])
    problem = refused(api.client.get("/v1/experiments/birds"), 409, None, "ambiguous")
    assert problem["experiments"] == [again["id"], first["id"]]
    assert "'birds' matches 2 experiments, newest first: exp_" in problem["detail"]
    refused(api.client.post("/v1/experiments/cats/cancel"), 404, None, "not-found")
    refused(api.client.delete("/v1/experiments/last"), 404, None, "not-found")


def test_grid_makes_a_variant_of_each_combination(api: Api) -> None:
    api.dataset()
    grid = {"method.temperature": [0.1, 0.2], "dar": [None, {"weight": 1}]}
    experiment = submitted(api, variants=None, grid=grid, seeds=[3])
    assert [each["name"] for each in experiment["variants"]] == [
        "method.temperature=0.1, dar=null",
        'method.temperature=0.1, dar={"weight": 1}',
        "method.temperature=0.2, dar=null",
        'method.temperature=0.2, dar={"weight": 1}',
    ]
    assert experiment["baseline"] == "method.temperature=0.1, dar=null"
    job = api.client.get(f"/v1/jobs/{experiment['jobs'][3]['id']}").json()
    assert job["spec"]["method"] == {"name": "simclr", "temperature": 0.2}
    assert job["spec"]["dar"] == {"weight": 1}


def test_variants_with_equal_settings_are_warned_of(api: Api) -> None:
    api.dataset()
    grid = {"dar.weight": [1, 2, 1.0]}
    (warning,) = submitted(api, variants=None, grid=grid)["warnings"]
    assert warning.startswith("variants.dar.weight=1.0: has the same settings as dar.weight=1;")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"variants": {"a": {}, "b": {"dar": {"weight": -1}}}}, "variants.b.dar.weight"),
        (
            {"variants": {"a": {}, "b": {"train": {"batch_size": 500}}}},
            "variants.b.train.batch_size",
        ),
        ({"variants": {"a": {}, "b": {"train": 5}}}, "variants.b.train"),
        ({"variants": {"a": {}, "b": {"dataset": "none"}}}, "variants.b.dataset"),
        ({"variants": {"a": {}, "b": {"epochs": 5}}}, "variants.b.epochs"),
        ({"spec": {"dataset": "emoji", "epochs": 5}}, "spec.epochs"),
        ({"spec": {"dataset": "none"}}, "spec.dataset"),
        ({"spec": {"dataset": "emoji", "train": {"batch_size": 500}}}, "spec.train.batch_size"),
        ({"spec": {"dataset": "emoji", "train": {"seed": 5}}}, "spec.train.seed"),
        ({"variants": None}, "variants"),
        ({"grid": {"dar.weight": [1]}}, "variants"),
        ({"variants": {}}, "variants"),
        ({"variants": {"a/b": {}}}, "variants.a/b"),
        ({"variants": None, "grid": {"dar.weight": []}}, "grid.dar.weight"),
        ({"variants": None, "grid": {"dar..weight": [1]}}, "grid.dar..weight"),
        ({"variants": None, "grid": {"train.epochs": [5, 5]}}, "grid"),
        ({"variants": None, "grid": {"dar.weight": [1, 2], "dar": [None, {}]}}, "grid.dar.weight"),
        ({"variants": None, "grid": {"dar.weight": [1] * 10, "train.epochs": [1] * 10}}, "grid"),
        ({"seeds": list(range(101))}, "variants"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": [-1]}, "seeds.0"),
        ({"seeds": [True]}, "seeds.0"),
        ({"seeds": ["1"]}, "seeds.0"),
        ({"baseline": "none"}, "baseline"),
        ({"metric": "alignment"}, "metric"),
        ({"metric": "recall"}, "metric"),
        ({"name": ""}, "name"),
        ({"repeat": 3}, "repeat"),
    ],
)
def test_invalid_request_stores_nothing_and_names_variant_and_field(
    api: Api, changes: dict[str, Any], field: str
) -> None:
    api.dataset()
    problem = refused(submit(api, **changes), 422)
    assert field in {error["field"] for error in problem["errors"]}, problem
    assert count(api) == (0, 0)


def test_all_problems_are_reported_at_once(api: Api) -> None:
    api.dataset()
    spec = {"dataset": "emoji", "train": {"epochs": 0}}
    variants = {"a": {}, "b": {"dar": {"weight": -1}}, "c": {"sec": {"weight": -1}}}
    problem = refused(submit(api, spec=spec, variants=variants), 422)
    fields = {error["field"] for error in problem["errors"]}
    assert fields == {"spec.train.epochs", "variants.b.dar.weight", "variants.c.sec.weight"}


def test_data_set_that_is_not_ready_is_a_conflict(api: Api) -> None:
    api.dataset(state="ingesting")
    refused(submit(api), 409, None, "dataset-not-ready")
    assert count(api) == (0, 0)


def test_repeated_request_gets_the_first_answer(api: Api) -> None:
    api.dataset()
    first, again = submit(api, "key"), submit(api, "key")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert count(api) == (1, 6)
    refused(submit(api, "key", seeds=[1]), 422, None, "idempotency-key-reused")
    assert api.client.delete(path(first.json())).status_code == 204
    refused(submit(api, "key"), 410, None, "experiment-deleted")


@pytest.mark.dialect
@pytest.mark.parametrize("owner", ["token", "tenant"])
def test_quota_counts_the_whole_group(api: Api, owner: str) -> None:
    api.dataset()
    if owner == "token":
        api.client.headers.update(api.token("submit", max_queued_jobs=7))
    else:
        headers = api.token("operator")
        limits = {"max_queued_jobs": 7}
        answer = api.client.patch("/v1/tenants/default", json=limits, headers=headers)
        assert answer.status_code == 200, answer.text
    api.submit()
    submitted(api)
    problem = refused(submit(api, seeds=[0]), 429, None, "quota-exceeded")
    assert (problem["limit"], problem["used"]) == (7, 7)
    assert "these are 2 more" in problem["detail"]
    assert count(api) == (1, 7)


def test_results_pair_jobs_by_seed(api: Api) -> None:
    api.dataset()
    experiment = submitted(api)
    waiting = shown(api, experiment)["results"]
    assert (waiting["metric"], waiting["sentences"]) == (None, [])
    assert waiting["notes"][0].startswith("0 of 6 jobs have succeeded (6 still to end)")
    finish_all(api, experiment)
    view = shown(api, experiment)
    assert (view["done"], view["statuses"]) == (True, {"succeeded": 6})
    results = view["results"]
    assert results["metric"] == "recall_at_1"
    assert results["sentences"] == [
        "dar: better than baseline in recall_at_1 (+20.00 points, 95% interval +9.86 to +30.14, 3 seeds)."
    ]
    untrained, note = results["notes"]
    assert untrained == (
        "The untrained network has 6.0 to 8.0 points of recall_at_1: all variants are better."
    )
    assert note.startswith("10 held-out images: one image is 10 points of recall_at_1.")
    [table] = results["metrics"]
    assert (table["larger_is_better"], table["resolution"]) == (True, 0.1)
    baseline, dar = table["variants"]
    assert baseline["values"] == {"0": 0.5, "1": 0.6, "2": 0.7}
    assert baseline["summary"] == pytest.approx(
        {"n": 3, "mean": 0.6, "std": 0.1, "min": 0.5, "max": 0.7}
    )
    assert (baseline["difference"], baseline["verdict"]) == (None, None)
    assert (dar["difference"]["mean"], dar["verdict"]) == (pytest.approx(0.2), "better")


@pytest.mark.parametrize(
    ("raw", "finding"),
    [
        (0.438, "all variants are better than both"),
        (0.65, "not clearly better than both: baseline"),
        (0.55, "not clearly better than both: baseline"),  # by less than one of 10 images
        (0.9, "no variant is clearly better than both"),
    ],
)
def test_variants_are_compared_with_raw_pixels_and_the_untrained_network(
    api: Api, raw: float, finding: str
) -> None:
    api.dataset()
    experiment = submitted(api, variants={"baseline": {}, "tuned": {"dar": {}}})
    for member in experiment["jobs"]:
        value = 0.6 if member["variant"] == "baseline" else 0.8
        finish(api, member["id"], raw={"knn_top1": raw, "uniformity": 1}, knn_top1=value)
    before = f"Raw pixels have {100 * raw:.1f} points of knn_top1, the untrained network 6.0 to 8.0"
    assert f"{before}: {finding}." in shown(api, experiment)["results"]["notes"]
    params = {"metric": "uniformity"}
    notes = api.client.get(path(experiment, "results"), params=params).json()["notes"]
    assert not any("pixels" in note for note in notes), "no variant has this metric"


def test_settings_that_follow_from_a_change_are_named(api: Api) -> None:
    api.dataset()
    variants = {"simclr": {}, "byol": {"method": {"name": "byol"}}, "also": {"dar": {"weight": 1}}}
    follow = submitted(api, variants=variants, seeds=[0])["results"]["notes"]
    [note] = [note for note in follow if "not among the changes" in note]
    assert note.startswith(
        "byol: settings that are not among the changes differ from simclr, too: "
    )
    assert "augment.crop_scale" in note
    assert "method." not in note

    crop = {"augment": {"crop_scale": [0.3, 1.0]}}
    variants = {"simclr": {**crop}, "byol": {"method": {"name": "byol"}, **crop}}
    same = submitted(api, variants=variants, seeds=[0])["results"]["notes"]
    assert not any("augment.crop_scale" in note for note in same)


@pytest.mark.parametrize("image_size", [32, 224])
def test_documented_comparison_of_methods_changes_the_method_alone(
    api: Api, image_size: int
) -> None:
    api.dataset()
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    [example] = (
        block.partition("```")[0]
        for block in page.split("```yaml")[1:]
        if "name: simclr-or-byol" in block
    )
    experiment = yaml.safe_load(example)
    changes = {"dataset": "emoji", "backbone": {"image_size": image_size}}
    submission = submitted(api, **experiment | {"spec": experiment["spec"] | changes})
    assert not any("among the changes" in note for note in submission["results"]["notes"])
    spec = {"dataset": "emoji", "backbone": {"image_size": image_size}}
    alone = submitted(api, **experiment | {"spec": spec})["results"]["notes"]
    assert any("augment.crop_scale" in note for note in alone)


def test_no_verdict_on_views_that_are_made_otherwise(api: Api) -> None:
    api.dataset()
    variants = {"plain": {}, "small": {"augment": {"crop_scale": [0.5, 1.0]}}, "dar": {"dar": {}}}
    experiment = submitted(api, variants=variants)
    for member in experiment["jobs"]:
        better = 0.0 if member["variant"] == "plain" else 0.2
        value = 0.5 + better + member["seed"] / 100
        finish(api, member["id"], knn_top1=value, instance_recall_at_1=value)
    tables = api.client.get(path(experiment, "results")).json()["metrics"]
    verdicts = {
        (table["metric"], each["variant"]): each["verdict"]
        for table in tables
        for each in table["variants"]
    }
    assert verdicts["instance_recall_at_1", "small"] is None
    assert verdicts["instance_recall_at_1", "dar"] == "better"
    assert verdicts["knn_top1", "small"] == "better"
    params = {"metric": "instance_recall_at_1"}
    results = api.client.get(path(experiment, "results"), params=params).json()
    assert [each.partition(":")[0] for each in results["sentences"]] == ["dar"]
    assert (
        "small: no verdict on instance_recall_at_1, because the augmentations (`augment`) differ from plain."
    ) in results["notes"]


def test_equal_differences_of_one_image_are_no_difference_in_views(api: Api) -> None:
    """R@1 of views, the metric of images without labels, moves in steps of one image, too."""
    api.dataset()
    experiment = submitted(api)
    for member in experiment["jobs"]:
        value = 0.5 if member["variant"] == "baseline" else 0.6
        finish(api, member["id"], instance_recall_at_1=value)
    results = shown(api, experiment)["results"]
    assert results["metric"] == "instance_recall_at_1"
    assert results["metrics"][0]["resolution"] == 0.1
    assert results["sentences"] == [
        "dar: no difference from baseline in instance_recall_at_1 beyond the spread of 3 seeds (+10.00 points, 95% interval "
        "-0.14 to +20.14). The difference is at most one of the held-out images."
    ]


def test_number_of_images_of_whole_classes_is_an_expected_one(api: Api) -> None:
    api.dataset()
    spec = REQUEST["spec"] | {"evaluate": {"holdout": {"by": "class", "fraction": 0.5}}}
    experiment = submitted(api, spec=spec)
    finish_all(api, experiment)
    images = experiment["variants"][0]["held_out_images"]
    expected = f"About {images} held-out images: one image is {100 / images:.2g} points"
    notes = shown(api, experiment)["results"]["notes"]
    assert any(note.startswith(expected) for note in notes), notes


def test_sentences_are_those_of_the_metric_that_was_asked_for(api: Api) -> None:
    api.dataset()
    experiment = submitted(api)
    finish_all(api, experiment)
    params = {"metric": "effective_rank"}
    results = api.client.get(path(experiment, "results"), params=params).json()
    assert results["metric"] == "recall_at_1"
    [sentence] = results["sentences"]
    assert sentence.startswith("dar: better than baseline in effective_rank (+0.6, 95% interval ")
    decides = "recall_at_1 decides. Verdicts on other metrics are hints: of ten metrics, one may differ by chance."
    assert results["notes"][-1] == decides
    assert decides not in shown(api, experiment)["results"]["notes"]


def test_results_of_any_metric_in_three_formats(api: Api) -> None:
    api.dataset()
    experiment = submitted(api)
    finish_all(api, experiment)

    def results(**params: Any) -> Any:
        return api.client.get(path(experiment, "results"), params=params)

    names = [each["metric"] for each in results().json()["metrics"]]
    assert names == ["recall_at_1", "effective_rank"]
    [table] = results(metric="alignment").json()["metrics"]
    assert [each["summary"] for each in table["variants"]] == [None, None]
    rows = results(format="csv")
    assert rows.headers["content-type"].startswith("text/csv")
    lines = rows.text.splitlines()
    assert lines[0].startswith("metric,variant,n,mean,std,min,max,difference_n,difference_mean")
    assert lines[1].startswith("recall_at_1,baseline,3,0.6")
    assert len(lines) == 5
    assert results(format="csv", metric="=1+1").text.splitlines()[1].startswith("'=1+1,baseline")
    markdown = results(format="markdown", metric="recall_at_1")
    assert markdown.headers["content-type"].startswith("text/markdown")
    assert "| dar | 3 | 0.8 | 0.1 | 0.7 to 0.9 | +0.2 (n 3) | " in markdown.text
    assert "* dar: better than baseline" in markdown.text
    refused(results(format="xml"), 422, "format")


def test_failed_and_deleted_jobs_leave_pairs_out(api: Api) -> None:
    api.dataset()
    experiment = submitted(api)
    by_place = {(each["variant"], each["seed"]): each["id"] for each in experiment["jobs"]}
    for place, job in by_place.items():
        outcome = "failed" if place == ("dar", 1) else "succeeded"
        finish(api, job, outcome, recall_at_1=VALUES[place])
    assert api.client.delete(f"/v1/jobs/{by_place['baseline', 2]}").status_code == 204
    view = shown(api, experiment)
    statuses = {(each["variant"], each["seed"]): each["status"] for each in view["jobs"]}
    assert statuses["dar", 1] == "failed"
    assert statuses["baseline", 2] == "deleted"
    assert (view["statuses"], view["done"]) == ({"succeeded": 4, "failed": 1}, True)
    results = view["results"]
    assert "4 of 6 jobs have succeeded (0 still to end, 1 deleted)" in results["notes"][0]
    baseline, dar = results["metrics"][0]["variants"]
    assert [baseline["summary"]["n"], dar["summary"]["n"], dar["difference"]["n"]] == [2, 2, 1]
    assert dar["verdict"] == "too_few_seeds"
    assert results["sentences"] == [
        "dar: too few seeds to say whether it differs from baseline in recall_at_1: 1 seed has ended in both, and 3 are "
        "needed."
    ]


def test_with_one_seed_the_effects_of_changes_in_a_design_are_ranked(api: Api) -> None:
    api.dataset()
    example = yaml.safe_load(WHICH_VIEWS.read_text(encoding="utf-8"))
    spec = example["spec"] | {"dataset": "emoji", "train": {"batch_size": 16}}
    experiment = submitted(api, **example | {"spec": spec})
    assert len(experiment["jobs"]) == 8
    assert "Half of the variants have each of these changes" in experiment["notes"][0]
    for member in experiment["jobs"]:
        changed = example["variants"][member["variant"]].get("augment", {})
        finish(api, member["id"], recall_at_1=0.3 + 0.4 * ("jitter" in changed))
    results = shown(api, experiment)["results"]
    assert results["sentences"][0] == (
        "augment.jitter 0.0 instead of 0.5: better in recall_at_1 (+40.00 points, 95% interval +38.70 to +41.30)."
    )
    assert [each.partition(":")[2][:14] for each in results["sentences"][1:]] == [
        " no difference"
    ] * 3
    assert EFFECTS_NOTE in results["notes"]
    assert not any("seeds only" in note for note in results["notes"])


def test_views_compared_without_labels_have_no_verdict_and_it_is_said_before(api: Api) -> None:
    api.dataset(num_classes=None)
    spec = REQUEST["spec"] | {"evaluate": {"holdout": {"by": "image"}}}
    variants: dict[str, Any] = {"plain": {}, "gray": {"augment": {"grayscale": 0.0}}}
    notes = submitted(api, spec=spec, variants=variants)["notes"]
    assert notes[-1].endswith("there will be no verdict. Add labels.")
    variants["gray"] = {"dar": {}}
    notes = submitted(api, spec=spec, variants=variants, name="other")["notes"]
    assert not any("labels" in note for note in notes)


def test_values_whose_variance_overflows_do_not_count(api: Api) -> None:
    api.dataset()
    experiment = submitted(api)
    for member in experiment["jobs"]:
        finish(api, member["id"], effective_rank=1e300 * (-1) ** member["seed"])
    assert shown(api, experiment)["results"]["metrics"][0]["variants"][0]["summary"] is None


def test_variant_with_a_collapsed_seed_is_not_called_better(api: Api) -> None:
    api.dataset()
    experiment = submitted(api, seeds=[0, 1, 2, 3])
    for member in experiment["jobs"]:
        place = (member["variant"], member["seed"])
        broke = place == ("dar", 3)
        outcome = "failed" if broke else "succeeded"
        value = VALUES.get(place, 0.5)
        finish(api, member["id"], outcome, error_type="CollapsedError", recall_at_1=value)
    results = shown(api, experiment)["results"]
    assert results["metrics"][0]["variants"][1]["verdict"] == "unstable"
    assert results["sentences"] == [
        "dar: unstable, since a seed collapsed or diverged; the seeds with a result are better than baseline in "
        "recall_at_1 (+20.00 points, 95% interval +9.86 to +30.14, 3 seeds)."
    ]
    assert any("diverged: dar with seed 3 (no result)" in note for note in results["notes"])


def test_limits_of_the_results_are_told_before_the_training(api: Api) -> None:
    api.dataset()
    variants = {"simclr": {}, "byol": {"method": {"name": "byol"}}}
    body = REQUEST | {"variants": variants, "seeds": [0, 1, 2, 3, 4]}
    notes = api.client.post("/v1/experiments/validate", json=body).json()["notes"]
    settings, power, images = notes
    assert settings.startswith("byol: settings that are not among the changes differ from simclr")
    assert power.startswith("With 5 seeds, 80% of experiments find a true difference of 1.7 times")
    assert images.startswith("10 held-out images: one of them is 10 points of an accuracy")
    assert submitted(api, **body)["notes"] == notes
    few = api.client.post("/v1/experiments/validate", json=body | {"seeds": [0]}).json()["notes"]
    assert few[1] == "seeds: 1 is too few for a verdict. Use at least 3, such as 5."


def test_embedding_counts_before_the_backbone(api: Api) -> None:
    api.dataset()
    experiment = submitted(api, seeds=[0])
    worker = api.run(experiment["jobs"][0]["id"])
    for subject, value in (("backbone", 0.5), ("embedding", 0.9)):
        report = {"step": 10, "epoch": 1, "subject": subject, "metrics": {"recall_at_1": value}}
        assert worker.post("evaluations", **report).is_success
    assert worker.post("finish", outcome="succeeded").is_success
    [table] = shown(api, experiment)["results"]["metrics"]
    assert table["variants"][0]["values"] == {"0": 0.9}


def test_curves_have_mean_and_spread_over_seeds(api: Api) -> None:
    api.dataset()
    experiment = submitted(api, seeds=[0, 1])
    for member in experiment["jobs"]:
        worker = api.run(member["id"])
        offset = member["seed"] + (10 if member["variant"] == "dar" else 0)
        points = [
            {"step": step, "time": float(step), "values": {"loss": step + offset}}
            for step in range(1, 101)
        ]
        assert worker.post("metrics", points=points).is_success
        for step in (50, 100):
            metrics = {"knn_top1": step / 1000 + offset / 100}
            report = {"step": step, "epoch": 1, "subject": "backbone", "metrics": metrics}
            assert worker.post("evaluations", **report).is_success

    def curves(**params: Any) -> Any:
        answer = api.client.get(path(experiment, "curves"), params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["variants"]

    baseline, dar = curves(metric="loss")
    assert (baseline["step"], set(baseline["n"])) == (list(range(1, 101)), {2})
    assert (baseline["mean"][:2], dar["mean"][0]) == ([1.5, 2.5], 11.5)
    assert (baseline["min"][0], baseline["max"][0]) == (1, 2)
    assert baseline["std"][0] == pytest.approx(0.5**0.5)
    baseline, _ = curves(metric="loss", max_points=10)
    assert baseline["step"] == list(range(10, 101, 10))
    assert baseline["mean"][0] == 6  # of 1 to 10, and of 2 to 11
    baseline, dar = curves(metric="knn_top1")
    assert baseline["step"] == [50, 100]
    assert dar["mean"] == pytest.approx([0.155, 0.205])
    assert curves(metric="unknown")[0]["step"] == []
    assert curves() == curves(metric="loss")
    few = api.client.get(path(experiment, "curves"), params={"max_points": 1})
    refused(few, 422, "max_points")


def test_cancel_ends_all_jobs_that_have_not_ended(api: Api) -> None:
    api.dataset()
    experiment = submitted(api, seeds=[0])
    first, second = (each["id"] for each in experiment["jobs"])
    finish(api, first)
    for _ in range(2):
        answer = api.client.post(path(experiment, "cancel"))
        assert answer.status_code == 202
        assert answer.json()["statuses"] == {"succeeded": 1, "cancelled": 1}
    assert api.client.get(f"/v1/jobs/{second}").json()["status"] == "cancelled"


def test_deletion_keeps_the_jobs_unless_asked(api: Api) -> None:
    api.dataset()
    first, second = submitted(api, seeds=[0]), submitted(api, seeds=[0])
    assert api.client.delete(path(first)).status_code == 204
    refused(api.client.get(path(first)), 404, None, "not-found")
    job = api.client.get(f"/v1/jobs/{first['jobs'][0]['id']}").json()
    assert (job["status"], job["experiment"]) == ("queued", None)

    problem = refused(api.client.delete(path(second), params={"jobs": True}), 409)
    assert (problem["type"], len(problem["jobs"])) == ("wrong-state", 2)
    api.client.post(path(second, "cancel"))
    assert api.client.delete(path(second), params={"jobs": True}).status_code == 204
    for member in second["jobs"]:
        refused(api.client.get(f"/v1/jobs/{member['id']}"), 404)
    refused(api.client.delete(path(second)), 404)


def test_tenant_with_experiments_only_can_be_deleted(api: Api, garbage: Garbage) -> None:
    operator = api.token("operator", tenant="operations")
    body = {"name": "lab"}
    assert api.client.post("/v1/tenants", json=body, headers=operator).status_code == 201
    theirs = operator | {"DASL-Tenant": "lab"}
    dataset = api.dataset(tenant="lab")
    answer = api.client.post("/v1/experiments", json=REQUEST, headers=theirs)
    assert answer.status_code == 201, answer.text
    assert api.client.post(path(answer.json(), "cancel"), headers=theirs).status_code == 202
    refused(api.client.delete("/v1/tenants/lab", headers=operator), 409, None, "tenant-not-empty")
    for member in answer.json()["jobs"]:
        deleted = api.client.delete(f"/v1/jobs/{member['id']}", headers=theirs)
        assert deleted.status_code == 204
    assert garbage.round()
    assert api.client.delete(f"/v1/datasets/{dataset}", headers=theirs).status_code == 204
    assert count(api) == (1, 0)
    assert api.client.delete("/v1/tenants/lab", headers=operator).status_code == 204
    assert count(api) == (0, 0)
