"""Requests of users: submit, list, watch, cancel."""

import itertools
import json
import random
from collections.abc import Sequence

from benchmarks.load.history import spec
from benchmarks.load.traffic import Sender

# Query strings of lists, by name. `{id}` is the id of a job, from which a page starts.
LISTINGS = {
    "first page": "",
    "page behind some job": "?after={id}",
    "status=queued": "?status=queued",
    "status=succeeded, page behind some job": "?status=succeeded&after={id}",
    "status=cancelled (one in 2000)": "?status=cancelled",
    "status=paused (none)": "?status=paused",
    "status=failed or cancelled": "?status=failed&status=cancelled",
    "method": "?method=byol",
    "tag (one in 5)": "?tag=team:robots",
    "tag (one in 2000)": "?tag=keep:yes",
    "tag (none)": "?tag=team:nobody",
    "method, status and tag": "?method=dino&status=failed&tag=run:7",
}


class People:
    """Sends requests with a token of the scope `submit`.

    Args:
        job_ids: ids of jobs to request.
    """

    def __init__(self, sender: Sender, token: str, job_ids: Sequence[str], first: int) -> None:
        self._sender, self._token, self._job_ids = sender, token, job_ids
        self._numbers = itertools.count(first)
        self._random = random.Random(1)
        self.submitted: list[str] = []

    async def submit(self, _number: int, due: float) -> None:
        """Submit a job with an idempotency key, as the client does."""
        mine = next(self._numbers)
        status, content = await self._sender.send(
            "submit", due, "POST", "/v1/jobs", self._token, spec(mine), key=f"key-{mine}"
        )
        if status == 201:
            self.submitted.append(json.loads(content)["id"])
        elif 400 <= status < 500:
            raise RuntimeError(f"a submission was refused, so nothing can be measured: {content!r}")

    async def list(self, number: int, due: float) -> None:
        """Request the next of `LISTINGS`."""
        name, query = list(LISTINGS.items())[number % len(LISTINGS)]
        query = query.format(id=self._random.choice(self._job_ids))
        await self._sender.send(f"list: {name}", due, "GET", f"/v1/jobs{query}", self._token)

    async def watch(self, number: int, due: float) -> None:
        """Request what `dasl watch` does, the cluster, and the Prometheus metrics."""
        recent = self.submitted[-2000:] or self._job_ids
        job_id = self._random.choice(recent)
        name, path = (
            ("job", f"/v1/jobs/{job_id}"),
            ("events", f"/v1/jobs/{job_id}/events"),
            ("metrics", f"/v1/jobs/{job_id}/metrics?name=loss&max_points=500"),
            ("attempts", f"/v1/jobs/{job_id}/attempts"),
            ("cluster", "/v1/cluster"),
            ("prometheus", "/metrics"),
        )[number % 6]
        await self._sender.send(f"watch: {name}", due, "GET", path, self._token)

    async def scrape(self, _number: int, due: float) -> None:
        """Request the Prometheus metrics."""
        await self._sender.send("watch: prometheus", due, "GET", "/metrics", self._token)

    async def cancel(self, number: int, due: float) -> None:
        """Cancel one of the newest jobs; it may be waiting, running, or ended (409)."""
        if self.submitted:
            job_id = self._random.choice(self.submitted[-1500:])
            await self._sender.send("cancel", due, "POST", f"/v1/jobs/{job_id}/cancel", self._token)
