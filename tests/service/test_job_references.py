"""Jobs by name, by the beginning of their id, and by `last`."""

from hypothesis import given
from hypothesis import strategies as st

from service import ids
from tests.support.api_under_test import Api, check_references, refused


def test_job_is_found_by_id_name_beginning_and_last(api: Api) -> None:
    api.dataset()
    check_references(api, "/v1/jobs", api.submit(name="birds"), api.submit(name="cats"))


def test_reference_that_fits_several_jobs_lists_them(api: Api) -> None:
    api.dataset()
    jobs = [api.submit(name="birds")["id"] for _ in range(12)]
    problem = refused(api.client.get("/v1/jobs/birds"), 409, None, "ambiguous")
    assert problem["jobs"] == jobs[:-11:-1]
    assert problem["detail"].startswith("'birds' matches more than 10 jobs, newest first: job_")
    refused(api.client.get("/v1/jobs/job_"), 404, None, "not-found")
    two = refused(api.client.get(f"/v1/jobs/{jobs[0][:5]}"), 409, None, "ambiguous")
    assert two["jobs"] == problem["jobs"], "a beginning"


def test_name_wins_over_the_beginning_of_an_id(api: Api) -> None:
    api.dataset()
    other = api.submit(name="other")["id"]
    named = api.submit(name=other[4:8])["id"]
    assert api.client.get(f"/v1/jobs/{other[4:8]}").json()["id"] == named


def test_last_is_the_newest_job_of_the_caller(api: Api) -> None:
    api.dataset()
    mine = api.submit()["id"]
    other = api.token("submit")
    spec = {"dataset": "emoji"}
    theirs = api.client.post("/v1/jobs", json=spec, headers=other).json()["id"]
    assert api.client.get("/v1/jobs/last").json()["id"] == mine
    assert api.client.get("/v1/jobs/last", headers=other).json()["id"] == theirs
    reader = api.token("read")
    refused(api.client.get("/v1/jobs/last", headers=reader), 404, None, "not-found")


def test_reference_never_shows_a_deleted_job_or_one_of_another_tenant(api: Api) -> None:
    api.dataset()
    job = api.submit(name="birds")["id"]
    foreign = api.token("read", tenant="other")
    for reference in (job, job[:29], "birds", "last"):
        refused(api.client.get(f"/v1/jobs/{reference}", headers=foreign), 404, None, "not-found")
    api.client.post(f"/v1/jobs/{job}/cancel")
    assert api.client.delete(f"/v1/jobs/{job}").status_code == 204
    for reference in (job, job[:29], "birds", "last"):
        refused(api.client.get(f"/v1/jobs/{reference}"), 404, None, "not-found")


def test_only_reading_a_job_takes_a_reference(api: Api) -> None:
    api.dataset()
    api.submit(name="birds")
    refused(api.client.get("/v1/jobs/a%00b"), 404, None, "not-found")
    for reference in ("birds", "last"):
        refused(api.client.post(f"/v1/jobs/{reference}/cancel"), 404, None, "not-found")
        refused(api.client.get(f"/v1/jobs/{reference}/events"), 404, None, "not-found")


@given(st.text(max_size=32))
def test_range_of_a_beginning_holds_exactly_its_ids(beginning: str) -> None:
    ends = ids.ids_beginning_with("job", beginning)
    if ends is None:
        return
    first, last = ends
    assert ids.is_id("job", first)
    assert ids.is_id("job", last)
    stem = f"job_{beginning.removeprefix('job_')}"
    assert first.startswith(stem)
    assert last.startswith(stem)


@given(st.integers(0, 26))
def test_id_lies_in_the_range_of_each_of_its_beginnings(length: int) -> None:
    job = ids.new_id("job")
    ends = ids.ids_beginning_with("job", job[: 4 + length])
    assert (ends is not None) == (length > 0)
    assert ends is None or ends[0] <= job <= ends[1]
