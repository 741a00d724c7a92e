"""Clients that submit jobs continuously, and repeat the requests that fail during an outage."""

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

import httpx

from service.client import Client

_CLIENTS = 4
_PAUSE_SECONDS = 0.05
# A request that fails for longer than this is given up.
_RETRY_SECONDS = 60.0


class OutageClients:
    """Context manager with threads that submit jobs and cancel them.

    Attributes:
        accepted: ids of accepted jobs by idempotency key.
        not_cured: requests that still failed after `_RETRY_SECONDS`.
    """

    def __init__(self, url: str, token: str, spec: dict[str, Any]) -> None:
        self._url, self._spec = url, spec
        self._headers = {"Authorization": f"Bearer {token}"}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._submit, args=(number,), name=f"client {number}")
            for number in range(_CLIENTS)
        ]
        self._lock = threading.Lock()
        self._responses: Counter[str] = Counter()
        self.accepted: dict[str, str] = {}
        self.not_cured: list[str] = []
        self._longest = 0.0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def counts(self) -> dict[str, Any]:
        """Return the number of each kind of response, and the longest time until a success."""
        return {
            "accepted_jobs": len(self.accepted),
            "answers": dict(sorted(self._responses.items())),
            "longest_until_cured_seconds": round(self._longest, 1),
        }

    def lost(self, client: Client) -> list[str]:
        """Return accepted jobs that are missing or duplicated, and unknown jobs."""
        stored = Counter(job.id for job in client.jobs.list(tag="by:outage"))
        lost = [job for job in self.accepted.values() if stored[job] != 1]
        return lost + sorted(stored.keys() - {*self.accepted.values()})

    def _submit(self, client: int) -> None:
        with httpx.Client(
            base_url=self._url, headers=self._headers, timeout=30, trust_env=False
        ) as http:
            number = 0
            while not self._stop.is_set():
                key = f"client-{client}-{number}"
                number += 1
                spec = self._spec | {"name": key, "tags": {"by": "outage"}, "priority": -1000}
                response = self._post(http, "/v1/jobs", spec, {"Idempotency-Key": key})
                if response is not None and response.is_success:
                    job = str(response.json()["id"])
                    with self._lock:
                        self.accepted[key] = job
                    self._post(http, f"/v1/jobs/{job}/cancel", None, {})
                self._stop.wait(_PAUSE_SECONDS)

    def _post(
        self, http: httpx.Client, path: str, body: object, headers: dict[str, str]
    ) -> httpx.Response | None:
        """Repeat a request until the response is not a 5xx; return `None` if that takes too long."""
        began = time.monotonic()
        while True:
            try:
                response = http.post(path, json=body, headers=headers)
                outcome = str(response.status_code)
            except httpx.TransportError as error:
                response, outcome = None, type(error).__name__
            seconds = time.monotonic() - began
            with self._lock:
                self._responses[outcome] += 1
                self._longest = max(self._longest, seconds)
            if response is not None and response.status_code < 500:
                return response
            if seconds > _RETRY_SECONDS:
                with self._lock:
                    self.not_cured.append(f"{path}: {outcome}")
                return None
            time.sleep(0.2)
