"""`/v1/experiments`: submit groups of jobs, and compare their variants over seeds."""

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import PlainTextResponse

from service.api.auth import Reader, Submitter
from service.api.own import to_change, to_read
from service.api.pagination import Page, Window, page, window
from service.api.transaction import HeavyRoute, ReadSession, Route, WithContext, WriteSession
from service.db.models import Experiment
from service.db.rows import newest, owned
from service.experiments import service, submission
from service.experiments.curves import compute_curves
from service.experiments.schemas import ExperimentRequest, ValidatedExperiment
from service.experiments.submission import CheckedVariants
from service.experiments.tables import as_csv, as_markdown
from service.jobs import idempotency
from service.jobs.checked_specs import check_spec
from service.jobs.idempotency import IdempotencyKey
from service.wire.experiments import (
    Curves,
    ExperimentSummary,
    ExperimentView,
    Results,
    SubmittedExperiment,
)

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=Route)
heavy = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=HeavyRoute)


async def _to_submit(
    request: ExperimentRequest, caller: Submitter, context: WithContext
) -> CheckedVariants:
    return await _to_validate(request, caller, context)


async def _to_validate(
    request: ExperimentRequest, caller: Reader, context: WithContext
) -> CheckedVariants:
    specs = submission.build_specs(request).items()
    checked = {name: await check_spec(context, caller, spec) for name, spec in specs}
    return CheckedVariants(request, checked)


RequestToSubmit = Annotated[CheckedVariants, Depends(_to_submit)]
RequestToValidate = Annotated[CheckedVariants, Depends(_to_validate)]
OwnExperiment = Annotated[Experiment, to_read("experiment_id", service.get)]
OwnExperimentToChange = Annotated[
    Experiment, to_change("experiment_id", partial(service.get, lock=True))
]
MetricName = Annotated[str, Query(max_length=100, pattern=r"^[^\x00]+$")]
_TEXTS = {
    "text/csv": {"schema": {"type": "string"}},
    "text/markdown": {"schema": {"type": "string"}},
}


@router.post("", status_code=201, response_model=SubmittedExperiment)
def submit_experiment(
    checked: RequestToSubmit,
    caller: Submitter,
    context: WithContext,
    session: WriteSession,
    key: IdempotencyKey = None,
) -> Response:
    """Queue a job for each variant and seed, or none if one of them is refused.

    A request repeated with the same `Idempotency-Key` gets the first answer.
    """
    limit = context.settings.cluster_limit
    answer, repeated = submission.submit(session, caller, checked, key, limit)
    return idempotency.respond("experiments", answer, repeated)


@router.post("/validate")
def validate_experiment(
    checked: RequestToValidate, caller: Reader, context: WithContext, session: ReadSession
) -> ValidatedExperiment:
    """Resolve the specs of all variants and estimate the cost of their jobs, without storing anything."""
    return submission.validate(session, caller, checked, context.settings.cluster_limit)


@router.get("")
def list_experiments(
    caller: Reader, session: ReadSession, window: Annotated[Window, window("exp")]
) -> Page[ExperimentSummary]:
    """List experiments, newest first."""
    rows = newest(session, owned(Experiment, caller.tenant), *window)
    views = service.summaries(session, rows[: window.limit])
    return page(rows, window.limit, lambda row: views[row.id])


@router.get("/{experiment_id}")
def show_experiment(experiment_id: str, caller: Reader, session: ReadSession) -> ExperimentView:
    """Show an experiment with its jobs, and the results of the metric that decides.

    The path is its id, a unique name, the beginning of its id, or `last`, the caller's newest. All other paths take
    only ids.
    """
    return service.experiment_view(session, service.find(session, caller, experiment_id))


@router.post("/{experiment_id}/cancel", status_code=202)
def cancel_experiment(experiment: OwnExperimentToChange, session: WriteSession) -> ExperimentView:
    """Request that all jobs that have not ended are cancelled."""
    return service.cancel(session, experiment)


@router.delete("/{experiment_id}", status_code=204, response_class=Response)
def delete_experiment(
    experiment: OwnExperimentToChange,
    session: WriteSession,
    jobs: Annotated[
        bool, Query(description="Delete its jobs as well, all of which must have ended.")
    ] = False,
) -> None:
    """Delete an experiment. Its jobs stay, without an experiment."""
    service.delete(session, experiment, with_jobs=jobs)


@heavy.get("/{experiment_id}/results", response_model=Results, responses={200: {"content": _TEXTS}})
def show_results(
    experiment: OwnExperiment,
    caller: Reader,
    session: ReadSession,
    metric: Annotated[
        list[MetricName] | None,
        Query(max_length=100, description="One or more; all with a better direction without it."),
    ] = None,
    format: Literal["json", "csv", "markdown"] = "json",
) -> Response | Results:
    """Show mean and spread of metrics over seeds, and paired differences from the baseline."""
    results = service.results(session, experiment, metric)
    if format == "csv":
        return PlainTextResponse(as_csv(results), media_type="text/csv")
    if format == "markdown":
        return PlainTextResponse(as_markdown(results), media_type="text/markdown")
    return results


@heavy.get("/{experiment_id}/curves")
def show_curves(
    experiment: OwnExperiment,
    caller: Reader,
    session: ReadSession,
    metric: MetricName = "loss",
    max_points: Annotated[int, Query(ge=2, le=10_000)] = 500,
) -> Curves:
    """Show mean and spread of a metric over the seeds of each variant, by step."""
    return compute_curves(session, experiment, metric, max_points)
