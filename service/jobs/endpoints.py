"""`/v1/jobs`: submit, list, show, change, cancel, pause, resume and clone jobs."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator

from dasl_core.spec import METHODS
from dasl_core.spec.base import problem
from dasl_core.spec.errors import closest
from service.api.auth import Reader, Submitter
from service.api.pagination import After, Limit, Page
from service.api.parameters import JobId, Moment
from service.api.problems import field_problem
from service.api.transaction import HeavyRoute, ReadSession, Route, WithContext, WriteSession
from service.jobs import clones, idempotency, repository, service, submission
from service.jobs.checked_specs import CloneToSubmit, SpecToSubmit, SpecToValidate
from service.jobs.dependencies import OwnJob, OwnJobToChange
from service.jobs.idempotency import IdempotencyKey
from service.jobs.listing import service as listing
from service.jobs.listing.repository import JobFilter
from service.jobs.schemas import JobPatch, SubmittedJob, ValidatedJob
from service.jobs.views import job_view
from service.states import JobStatus
from service.storage import deletion
from service.wire.jobs import AttemptView, EvaluationView, JobSummary, JobView

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=Route)
# A list in an order of figures, or of a part of a text, reads all jobs of a tenant.
lists = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=HeavyRoute)

_TEXT = r"^[^\x00]+$"


def _known_method(name: str | None) -> str | None:
    if name is not None and name not in METHODS:
        message = "is not a known method" + closest(name, METHODS)
        raise problem(message, name, "one of " + ", ".join(METHODS))
    return name


@router.post("", status_code=201, response_model=SubmittedJob)
def submit_job(
    checked: SpecToSubmit,
    caller: Submitter,
    context: WithContext,
    session: WriteSession,
    key: IdempotencyKey = None,
) -> Response:
    """Queue a job; a request repeated with the same `Idempotency-Key` gets the first answer."""
    limit = context.settings.cluster_limit
    answer, repeated = submission.submit(session, caller, checked, key, limit)
    return idempotency.respond("jobs", answer, repeated, status=201)


@router.post("/validate")
def validate_job(
    checked: SpecToValidate, caller: Reader, context: WithContext, session: ReadSession
) -> ValidatedJob:
    """Resolve a spec (every "auto" except in `resources`) and estimate its cost, without storing anything."""
    limit = context.settings.cluster_limit
    planned = submission.plan(session, caller, checked, limit, with_advice=True)
    return ValidatedJob(
        resolved=planned.resolved.model_dump(mode="json"),
        estimate=planned.estimate,
        warnings=planned.warnings,
        advice=planned.advice,
    )


@lists.get("", response_model=Page[JobView] | Page[JobSummary])
def list_jobs(
    caller: Reader,
    context: WithContext,
    session: ReadSession,
    id: Annotated[list[JobId] | None, Query(max_length=100, description="One or more.")] = None,
    status: Annotated[list[JobStatus] | None, Query(description="One or more.")] = None,
    method: Annotated[str | None, AfterValidator(_known_method)] = None,
    tag: Annotated[
        str | None, Query(max_length=130, pattern=r"^[^\x00-\x1f]+$", description="`key:value`")
    ] = None,
    experiment: Annotated[
        str | None,
        Query(max_length=40, pattern=r"^[\x21-\x7e]+$", description="Id of an experiment."),
    ] = None,
    dataset: Annotated[
        str | None, Query(max_length=200, pattern=_TEXT, description="Id or name.")
    ] = None,
    created_after: Moment | None = None,
    q: Annotated[
        str | None,
        Query(
            min_length=1, max_length=200, pattern=_TEXT, description="Part of a name, tag or id."
        ),
    ] = None,
    sort: Annotated[
        str,
        Query(max_length=100, description="A column, or `best.METRIC`; with `-` descending."),
        AfterValidator(listing.check_order),
    ] = "-created_at",
    summary: Annotated[bool, Query(description="Small rows, for a list.")] = False,
    after: Annotated[After, Query(max_length=1000)] = None,
    limit: Limit = 50,
) -> Page[JobView] | Page[JobSummary]:
    """List jobs, newest first or in another order."""
    key, colon, value = (tag or "").partition(":")
    if tag is not None and not (key and colon and value):
        raise field_problem("tag", "is not a tag", tag, "key:value")
    filter = JobFilter(
        caller.tenant,
        ids=id or (),
        statuses=status or (),
        method=method,
        tag=(key, value) if tag is not None else None,
        experiment=experiment,
        dataset=dataset,
        created_after=created_after,
        text=q,
    )
    rows, following = listing.page(session, filter, sort, after, limit)
    has_more = following is not None
    if summary:
        small = listing.summaries(session, caller.tenant, rows)
        return Page(data=small, has_more=has_more, next=following)
    views = [job_view(row.job, row.dataset_name) for row in rows]
    return Page(data=views, has_more=has_more, next=following)


@router.get("/{job_id}")
def show_job(job_id: str, caller: Reader, session: ReadSession) -> JobView:
    """Show a job by its id, a unique name, the beginning of its id, or `last`, the caller's newest job.

    All other paths take only ids, so that a change cannot hit a job that was submitted meanwhile.
    """
    return service.find(session, caller, job_id)


@router.patch("/{job_id}")
def change_job(
    job: OwnJobToChange, changes: JobPatch, context: WithContext, session: WriteSession
) -> JobView:
    """Change a job's name, tags, priority, or time limit (`resources.max_hours`).

    `resources.workers` of a paused or queued job can also be changed; 409 otherwise.
    """
    return service.patch(session, job, changes, context.settings.cluster_limit)


@router.delete("/{job_id}", status_code=204, response_class=Response)
def delete_job(job: OwnJobToChange, session: WriteSession) -> None:
    """Delete a job that has ended, with everything that belongs to it; 409 while it or a clone of it has not ended."""
    deletion.delete_job(session, job)


@router.post("/{job_id}/undelete")
def undelete_job(job: OwnJobToChange, session: WriteSession) -> JobView:
    """Take back what retention by age has marked of a job (`expires_at`); 409 if nothing is marked."""
    deletion.undelete_job(session, job)
    return service.view(session, job)


@router.post("/{job_id}/cancel", status_code=202)
def cancel_job(job: OwnJobToChange, session: WriteSession) -> JobView:
    """Request that a job is cancelled; it stops after its current step. 409 once it has ended."""
    return service.cancel(session, job)


@router.post("/{job_id}/pause", status_code=202)
def pause_job(job: OwnJobToChange, session: WriteSession) -> JobView:
    """Request that a job is paused; it saves a checkpoint after its current step. 409 once it has ended."""
    return service.pause(session, job)


@router.post("/{job_id}/resume", status_code=202)
def resume_job(job: OwnJobToChange, session: WriteSession) -> JobView:
    """Queue a paused job again; it resumes from its last checkpoint. 409 if it is not paused or has no time left."""
    return service.resume(session, job)


@router.post("/{job_id}/clone", status_code=202, response_model=SubmittedJob)
def clone_job(
    job_id: str,
    checked: CloneToSubmit,
    caller: Submitter,
    context: WithContext,
    session: WriteSession,
    key: IdempotencyKey = None,
) -> Response:
    """Queue a new job that continues from a checkpoint of this job, with changed settings."""
    request = checked.request
    find_checkpoint = None
    if request.checkpoint is not None:
        find_checkpoint = partial(
            clones.find_start_checkpoint, session, caller.tenant, job_id, request.checkpoint
        )
    # Hash the request as sent: "newest" may be another checkpoint when the request is repeated.
    replayable = {"clone": job_id} | request.model_dump(mode="json")
    answer, repeated = submission.submit(
        session,
        caller,
        checked.checked,
        key,
        context.settings.cluster_limit,
        find_checkpoint=find_checkpoint,
        request=replayable,
    )
    return idempotency.respond("jobs", answer, repeated, status=202)


@router.get("/{job_id}/attempts")
def list_attempts(job: OwnJob, session: ReadSession) -> Page[AttemptView]:
    """List a job's attempts, oldest first."""
    rows = repository.attempts(session, job.id)
    return Page(data=[AttemptView.model_validate(row) for row in rows])


@router.get("/{job_id}/evaluations")
def list_job_evaluations(job: OwnJob, session: ReadSession) -> Page[EvaluationView]:
    """List a job's evaluations on held-out images, by step."""
    rows = repository.evaluations(session, job.id)
    return Page(data=[EvaluationView.model_validate(row) for row in rows])
