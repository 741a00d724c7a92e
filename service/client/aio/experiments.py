"""Experiments: variants of a spec, each trained with several seeds, and their comparison."""

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from service.client.aio.transport import AsyncResource, path_to
from service.client.aio.waiting import OUTAGE_SECONDS, Polling, wait_until
from service.client.models import ExperimentValidation, read
from service.wire.experiments import (
    ExperimentSummary,
    ExperimentView,
    Results,
    SubmittedExperiment,
    VariantCurve,
)


class AsyncExperiments(AsyncResource):
    """`client.experiments`."""

    async def submit(
        self, experiment: Mapping[str, Any] | str | Path, *, idempotency_key: str | None = None
    ) -> SubmittedExperiment:
        """Submit an experiment: either all of its jobs are queued or none.

        Args:
            experiment: a mapping with `name`, `spec`, `variants` or `grid`, and `seeds`, or a YAML or JSON file.
            idempotency_key: see `client.jobs.submit`.

        Raises:
            ApiError: the server refused it; names of fields begin with the name of their variant.
            InvalidSpec: it cannot be read or sent.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        answer = await self._send_spec(path_to("experiments"), experiment, headers)
        return read(SubmittedExperiment, answer)

    async def validate(self, experiment: Mapping[str, Any] | str | Path) -> ExperimentValidation:
        """Resolve the specs of all variants and estimate the cost of their jobs, without submitting them.

        Raises:
            ApiError, InvalidSpec: see `submit`.
        """
        path = path_to("experiments", "validate")
        return read(ExperimentValidation, await self._send_spec(path, experiment, {}))

    async def get(self, experiment_id: str, *, patience: float | None = None) -> ExperimentView:
        """Return an experiment with its jobs, and the results of the metric that decides.

        Args:
            experiment_id: its id, a unique name, the beginning of its id, or "last".
        """
        path = path_to("experiments", experiment_id)
        return await self._transport.read(ExperimentView, "GET", path, patience=patience)

    def list(self, *, page_size: int = 100) -> AsyncIterator[ExperimentSummary]:
        """Iterate over experiments, newest first."""
        return self._transport.records(
            ExperimentSummary, path_to("experiments"), {"limit": page_size}
        )

    async def wait(
        self, experiment_id: str, **polling: Unpack[Polling[ExperimentView]]
    ) -> ExperimentView:
        """Wait until all jobs have ended in any state; ask every two seconds by default.

        Raises:
            WaitTimeout: they have not ended after `timeout` seconds.
        """
        polling.setdefault("poll", 2.0)
        return await wait_until(
            lambda: self.get(experiment_id, patience=OUTAGE_SECONDS),
            lambda experiment: experiment.done,
            f"Experiment {experiment_id}",
            **polling,
        )

    async def cancel(self, experiment_id: str) -> ExperimentView:
        """Cancel all jobs that have not ended."""
        path = path_to("experiments", experiment_id, "cancel")
        return await self._transport.read(ExperimentView, "POST", path, repeatable=True)

    async def delete(self, experiment_id: str, *, jobs: bool = False) -> None:
        """Delete an experiment.

        Args:
            jobs: whether to delete its jobs as well, all of which must have ended.
        """
        path = path_to("experiments", experiment_id)
        await self._transport.json("DELETE", path, params={"jobs": "true"} if jobs else None)

    async def results(self, experiment_id: str, metric: str | None = None) -> Results:
        """Return the results of one metric, by default of all with a better direction."""
        path = path_to("experiments", experiment_id, "results")
        return await self._transport.read(Results, "GET", path, params={"metric": metric})

    async def table(
        self, experiment_id: str, format: Literal["csv", "markdown"], metric: str | None = None
    ) -> str:
        """Return the results as CSV or Markdown."""
        path = path_to("experiments", experiment_id, "results")
        return await self._transport.text(path, params={"metric": metric, "format": format})

    async def curves(
        self, experiment_id: str, metric: str, *, max_points: int | None = None
    ) -> Sequence[VariantCurve]:
        """Return a metric by step, as mean and spread over the seeds of each variant."""
        path = path_to("experiments", experiment_id, "curves")
        params = {"metric": metric, "max_points": max_points}
        answer = await self._transport.json("GET", path, params=params)
        return [read(VariantCurve, curve) for curve in answer["variants"]]
