"""Clients that submit continuously and repeat failed requests during an outage."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

import httpx

from service.client import Client

_PEOPLE = 4
_PAUSE_SECONDS = 0.05
# A request that fails for longer than this counts as not cured.
_CURED_WITHIN_SECONDS = 60.0


class OutageClients:
    """Context manager: threads that submit jobs, each with its own idempotency key, and cancel them."""

    def __init__(self, url: str, token: str, spec: dict[str, Any]) -> None:
        self._url, self._spec = url, spec
        self._headers = {"Authorization": f"Bearer {token}"}
        self._stop = threading.Event()
        self._people = [
            threading.Thread(target=self._submit, args=(number,), name=f"person {number}")
            for number in range(_PEOPLE)
        ]
        self._lock = threading.Lock()
        self._answers: Counter[str] = Counter()
        self.accepted: dict[str, str] = {}
        self.not_cured: list[str] = []
        self._longest = 0.0

    def __enter__(self) -> Self:
        for person in self._people:
            person.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for person in self._people:
            person.join()

    def counts(self) -> dict[str, Any]:
        """Return the number of each kind of response, and the longest time until a success."""
        return {
            "accepted_jobs": len(self.accepted),
            "answers": dict(sorted(self._answers.items())),
            "longest_until_cured_seconds": round(self._longest, 1),
        }

    def lost(self, client: Client) -> list[str]:
        """Return accepted jobs that are missing or duplicated, and unknown jobs."""
        there = Counter(job.id for job in client.jobs.list(tag="by:outage"))
        lost = [job for job in self.accepted.values() if there[job] != 1]
        return lost + sorted(there.keys() - {*self.accepted.values()})

    def _submit(self, person: int) -> None:
        with httpx.Client(
            base_url=self._url, headers=self._headers, timeout=30, trust_env=False
        ) as http:
            number = 0
            while not self._stop.is_set():
                key = f"person-{person}-{number}"
                number += 1
                spec = self._spec | {"name": key, "tags": {"by": "outage"}, "priority": -1000}
                answer = self._until_cured(http, "/v1/jobs", spec, {"Idempotency-Key": key})
                if answer is not None and answer.is_success:
                    job = str(answer.json()["id"])
                    with self._lock:
                        self.accepted[key] = job
                    self._until_cured(http, f"/v1/jobs/{job}/cancel", None, {})
                self._stop.wait(_PAUSE_SECONDS)

    def _until_cured(
        self, http: httpx.Client, path: str, body: object, headers: dict[str, str]
    ) -> httpx.Response | None:
        """Repeat a request until the response is not a 5xx."""
        began = time.monotonic()
        while True:
            try:
                answer = http.post(path, json=body, headers=headers)
                outcome = str(answer.status_code)
            except httpx.TransportError as error:
                answer, outcome = None, type(error).__name__
            seconds = time.monotonic() - began
            with self._lock:
                self._answers[outcome] += 1
                self._longest = max(self._longest, seconds)
            if answer is not None and answer.status_code < 500:
                return answer
            if seconds > _CURED_WITHIN_SECONDS:
                with self._lock:
                    self.not_cured.append(f"{path}: {outcome}")
                return None
            time.sleep(0.2)
