"""Experiments on the page, and jobs compared in groups."""

import re

import pytest
import yaml
from playwright.sync_api import expect

from service.client.errors import ApiError
from tests.support.busy_service import BusyService
from tests.web.conftest import PHONE, Watched, downloaded


def test_experiment_shows_sentences_jobs_and_differences(
    opened: Watched, busy: BusyService
) -> None:
    page = opened.open("experiments")
    row = page.get_by_role("region", name="Experiments").get_by_role("row").nth(1)
    expect(row).to_contain_text("6 of 9")
    expect(row).to_contain_text("plain, dar, sec")
    row.get_by_role("link", name="regularizers").click()
    experiment = busy.client.experiments.get(busy.jobs["regularizers"])
    for sentence in experiment.results.sentences:
        expect(page.get_by_text(sentence)).to_be_visible()
    variants = page.get_by_role("region", name="Variants")
    dar = variants.get_by_role("row").filter(has_text="dar")
    (found,) = [each for each in experiment.results.metrics[0].variants if each.variant == "dar"]
    assert found.summary is not None
    assert found.difference is not None
    expect(dar).to_contain_text(f"{found.summary.mean * 100:.2f} %")
    expect(dar).to_contain_text(f"+{found.difference.mean * 100:.2f}")
    expect(dar).to_contain_text("too few seeds")
    curve = page.get_by_role("img", name="k-NN top-1:")
    expect(curve).to_have_accessible_name(re.compile(r"plain 0\.\d+, dar 0\.\d+, sec 0\.\d+"))
    page.get_by_label("Metric").select_option(label="effective rank")
    assert "metric=effective_rank" in page.url
    jobs = page.get_by_role("region", name="Jobs by variant and seed")
    changed = jobs.get_by_role("row").filter(has_text="dar")
    expect(changed).to_contain_text("dar.weight: 0.5")
    changed.get_by_role("link").first.click()
    expect(page).to_have_url(re.compile("/jobs/job_"))
    expect(page.get_by_text("seed 0", exact=True)).to_be_visible()
    page.locator(".figures").get_by_role("link", name="dar").click()
    expect(page.get_by_role("heading", name="regularizers", level=1)).to_be_visible()


@pytest.mark.slow
def test_experiment_is_written_estimated_and_submitted(opened: Watched, busy: BusyService) -> None:
    page = opened.open("experiments")
    page.get_by_role("link", name="New experiment").click()
    settings = page.get_by_label("Settings as YAML")
    expect(settings).to_have_value(re.compile("seeds:\n  - 0\n  - 1\n  - 2\n"))
    planned = page.locator("section").filter(has_text="What will run")
    expect(planned.get_by_role("row")).to_contain_text(["Variant", "baseline", "dar", "sec"])
    expect(planned).to_contain_text("Jobs15")
    expect(planned).to_contain_text(
        "With 5 seeds, 80% of experiments find a true difference of 1.7"
    )

    opened.provoked = {422}
    submit = page.get_by_role("button", name="Submit")
    text = "{name: written, seeds: [4, 5], variants: {plain: {}, b: {train: {epochs: %s}}}, spec: {dataset: birds}}"
    settings.fill(text % 0)
    expect(page.get_by_role("alert")).to_contain_text("variants.b.train.epochs")
    expect(submit).to_be_disabled()
    settings.fill("name: written\nvariants\n  plain: {}\n")
    expect(page.get_by_role("alert")).to_have_text(re.compile(r"\(3:8\)\n\n 1 \| name: written\n"))
    expect(submit).to_be_disabled()
    settings.fill((text % 3).replace("birds", "brids"))
    expect(page.get_by_role("alert")).to_contain_text("did you mean 'birds'? Expected:")
    settings.fill(text % 3)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(submit).to_be_enabled()
    # What cannot be read is not submitted, nor is what stood there before.
    settings.fill(text % "3}")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(submit).to_be_disabled()
    settings.fill(text % 3)
    expect(submit).to_be_enabled()
    expect(planned).to_contain_text("Jobs4")
    submit.click()
    expect(page.get_by_role("heading", name="written", level=1)).to_be_visible()
    experiment = busy.client.experiments.get("written")
    assert experiment.id in page.url
    assert (len(experiment.jobs), experiment.seeds) == (4, [4, 5])
    page.close()  # It would ask for the experiment that is deleted now.
    busy.client.experiments.cancel(experiment.id)
    busy.client.experiments.delete(experiment.id, jobs=True)


@pytest.mark.slow
def test_experiment_about_a_job_has_its_settings(opened: Watched, busy: BusyService) -> None:
    job = busy.client.jobs.get(busy.jobs["with-dar"])
    page = opened.open(f"jobs/{job.id}")
    page.get_by_role("link", name="Vary").click()
    settings = page.get_by_label("Settings as YAML")
    expect(settings).to_have_value(re.compile("without-dar"))
    written = yaml.safe_load(settings.input_value())
    assert written["variants"] == {"baseline": {}, "without-dar": {"dar": None}, "sec": {"sec": {}}}
    assert written["spec"] == {k: v for k, v in (job.spec or {}).items() if k != "name"}
    expect(page.get_by_text("What will run")).to_be_visible()


@pytest.mark.slow
def test_results_are_saved(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"experiments/{busy.jobs['regularizers']}")
    for title, ending, begin in (("CSV", "csv", "metric,"), ("Markdown", "md", "|")):
        link = page.get_by_role("link", name=title)
        expect(link).to_have_attribute("download", f"regularizers.{ending}")
        assert begin in downloaded(page, link).read_text()


@pytest.mark.slow
def test_jobs_of_an_experiment_are_listed_and_compared(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"experiments/{busy.jobs['regularizers']}")
    page.get_by_role("link", name="Its jobs").click()
    expect(page.get_by_role("status").filter(has_text="9 jobs")).to_be_visible()
    page.get_by_role("button", name="Remove the filter by experiment").click()
    expect(page.get_by_role("link", name="with-dar")).to_be_visible()
    page.goto(f"{opened.origin}/#/experiments/{busy.jobs['regularizers']}")
    page.get_by_role("link", name="Compare", exact=True).click()
    figures = page.get_by_role("region", name="Newest evaluation")
    expect(figures.get_by_role("columnheader").nth(1)).to_have_text("plain (3)")
    expect(page.get_by_role("img", name="k-NN top-1:")).to_have_accessible_name(
        re.compile(r"plain 0\.\d+, dar 0\.\d+, sec 0\.\d+$")
    )


@pytest.mark.slow
def test_jobs_are_compared_in_one_request_and_grouped_by_a_tag(
    opened: Watched, busy: BusyService
) -> None:
    ids = ",".join(busy.jobs[name] for name in ("baseline", "with-dar", "paused"))
    asked: list[str] = []
    opened.page.on("request", lambda request: asked.append(request.url))
    page = opened.open(f"compare?jobs={ids}")
    loss = page.get_by_role("img", name="loss:")
    expect(loss).to_have_accessible_name(re.compile(r"baseline \d.*with-dar \d.*paused \d"))
    assert sum("/metrics" in url for url in asked) == 1
    page.get_by_label("Group by").select_option("study")
    expect(loss).to_have_accessible_name(re.compile(r"^loss: dar \d\.\d+, none \d\.\d+$"))
    last = [
        busy.client.jobs.metrics(busy.jobs[name], name="loss").values["loss"][-1] or 0.0
        for name in ("baseline", "with-dar")
    ]
    expect(loss).to_have_accessible_name(re.compile(f"dar {sum(last) / 2:.4g}".rstrip("0")))


@pytest.mark.slow
def test_best_value_is_marked_only_beyond_chance(opened: Watched, busy: BusyService) -> None:
    """Of 64 held-out images, differences of 17 points may be chance."""
    knn = {"compared-0": 0.40, "compared-1": 0.46, "compared-2": 0.90}
    for name, value in knn.items():
        worker = busy.service.start_attempt(busy.submit(name))
        worker.start()
        worker.evaluation(step=0, epoch=0, subject="raw", metrics={"knn_top1": 0.3})
        metrics = {"knn_top1": value, "recall_at_1": 0.5 + value / 10, "nmi": value}
        worker.evaluation(step=8, epoch=1, subject="backbone", metrics=metrics)
        worker.finish("failed", {"type": "Test", "message": "It ends."}, retryable=False)
    first, second, third = (busy.jobs[name] for name in knn)
    page = opened.open(f"compare?jobs={first},{second}")
    figures = page.get_by_role("region", name="Newest evaluation")
    row = figures.get_by_role("row")
    expect(row.filter(has_text="held-out images")).to_have_text("held-out images6464")
    expect(row.filter(has_text="k-NN top-1, raw pixels")).to_have_text(
        "k-NN top-1, raw pixels30.0 %30.0 %"
    )
    expect(row.filter(has_text="46.0 %")).to_have_text("k-NN top-140.0 %46.0 %")
    marked = figures.locator("td.best")
    expect(marked).to_have_count(0)  # NMI has no known error
    remarks = page.locator(".remarks li")
    remark = "k-NN top-1: differences below 17.5 points may be chance (64 held-out images)."
    expect(remarks.filter(has_text="k-NN")).to_have_text(remark)
    expect(remarks.filter(has_text="R@1")).to_contain_text("differences below 17.6 points")
    expect(remarks.filter(has_text="Another seed")).to_be_visible()
    page = opened.open(f"compare?jobs={second},{third}")
    expect(marked).to_have_text(["90.0 %"])
    expect(remarks.filter(has_text="k-NN")).to_have_count(0)
    expect(remarks.filter(has_text="R@1")).to_have_count(1)


@pytest.mark.slow
@pytest.mark.parametrize("opened", [("light", PHONE)], indirect=True)
def test_two_jobs_are_compared_on_a_phone(opened: Watched, busy: BusyService) -> None:
    ids = f"{busy.jobs['baseline']},{busy.jobs['with-dar']}"
    page = opened.open(f"compare?jobs={ids}")
    for name in ("Newest evaluation", "Settings that differ"):
        table = page.get_by_role("region", name=name)
        second = table.get_by_role("columnheader").nth(2)
        expect(second).to_contain_text("with-dar")
        box = second.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE[0], name


@pytest.mark.slow
def test_compared_jobs_of_one_name_have_the_end_of_their_id(
    opened: Watched, busy: BusyService
) -> None:
    for seed in (0, 1):
        worker = busy.running("twin", train={"seed": seed, "epochs": 60, "batch_size": 32})
        worker.finish("failed", {"type": "Test", "message": "It ends."}, retryable=False)
    ids = [job.id for job in busy.client.jobs.list() if job.name == "twin"]
    page = opened.open(f"compare?jobs={','.join(ids)}")
    differing = page.get_by_role("region", name="Settings that differ")
    names = [f"twin ({each[-4:]})" for each in ids]
    expect(differing.get_by_role("columnheader")).to_have_text(["Setting", *names])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fraction", "images"),
    # Python rounds a half to the even number.
    [pytest.param(0.5, "320", id="half"), pytest.param(64.5 / 640, "64", id="tie")],
)
def test_held_out_images_are_counted_and_only_equal_ones_compared(
    opened: Watched, busy: BusyService, fraction: float, images: str
) -> None:
    """The other job is evaluated on a tenth of the 640 images."""
    other = busy.running("other", evaluate={"holdout": {"fraction": fraction}})
    other.finish("failed", {"type": "Test", "message": "It ends."}, retryable=False)
    page = opened.open(f"compare?jobs={busy.jobs['baseline']},{busy.jobs['other']}")
    figures = page.get_by_role("region", name="Newest evaluation")
    row = figures.get_by_role("row").filter(has_text="held-out images")
    expect(row).to_have_text(f"held-out images64{images}")
    apart = page.locator(".remarks").get_by_text("evaluated on different numbers of images")
    expect(apart).to_have_count(0 if images == "64" else 1)
    if images != "64":
        expect(figures.locator("td.best")).to_have_count(0)


@pytest.mark.slow
def test_experiment_is_cancelled_and_deleted_with_its_jobs(
    opened: Watched, busy: BusyService
) -> None:
    request = {"name": "useless", "spec": {"dataset": "birds"}, "variants": {"one": {}}}
    experiment = busy.client.experiments.submit({**request, "seeds": [0, 1]})
    page = opened.open(f"experiments/{experiment.id}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".title-line .chip")).to_have_text("done")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete with its jobs").click()
    expect(page.get_by_role("heading", name="Experiments", level=1)).to_be_visible()
    job = experiment.jobs[0].id
    assert job is not None
    with pytest.raises(ApiError):
        busy.client.jobs.get(job)
