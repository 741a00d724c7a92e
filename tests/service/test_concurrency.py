"""More requests at a time than there are threads to serve them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from api_under_test import Api

# Starlette's pool has 40.
REQUESTS = 100


def test_writers_that_wait_leave_the_one_who_writes_a_thread(api: Api) -> None:
    """Who holds the database's lock must not need a thread while all others wait for that lock."""
    api.dataset()

    def submit(number: int) -> Any:
        return api.client.post("/v1/jobs", json={"dataset": "emoji", "name": f"job {number}"})

    with ThreadPoolExecutor(REQUESTS) as pool:
        answers = list(pool.map(submit, range(REQUESTS)))
    assert [answer.status_code for answer in answers] == [201] * REQUESTS
