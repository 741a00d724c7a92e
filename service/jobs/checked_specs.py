"""Dependencies that check the paths of the spec in a request, before the request's transaction begins.

A file system may hang, so the checks run in separate threads: only requests that name paths wait for it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from fastapi import Depends
from starlette.concurrency import run_in_threadpool

from dasl_core.spec import JobSpec
from service.api.auth import Caller, Reader, Submitter
from service.api.problems import field_problem
from service.api.transaction import Context, WithContext
from service.jobs import clones, path_checks
from service.jobs.path_checks import CheckedSpec
from service.jobs.schemas import CloneRequest, SpecBody


@dataclass(frozen=True)
class CheckedClone:
    """A request for a clone, and the clone's spec."""

    request: CloneRequest
    checked: CheckedSpec


async def _to_submit(spec: SpecBody, caller: Submitter, context: WithContext) -> CheckedSpec:
    return await check_spec(context, caller, spec)


async def _to_validate(spec: SpecBody, caller: Reader, context: WithContext) -> CheckedSpec:
    return await check_spec(context, caller, spec)


async def _to_clone(
    job_id: str, caller: Submitter, context: WithContext, request: CloneRequest | None = None
) -> CheckedClone:
    request = request or CloneRequest()
    spec = await run_in_threadpool(
        clones.clone_spec, context.database, caller.tenant, job_id, request
    )
    return CheckedClone(request, await check_spec(context, caller, spec))


async def check_spec(context: Context, caller: Caller, spec: JobSpec) -> CheckedSpec:
    """Check the paths that a spec names, in separate threads.

    Raises:
        Problem: 422, the caller may not submit, and the spec names weights.
    """
    if spec.backbone.pretrained is not None and not caller.may("submit"):
        # The answer would disclose which files exist and what they contain.
        message = "is a path, which only a token with the scope submit may check"
        expected = "null, or a token with the scope submit"
        raise field_problem("backbone.pretrained", message, spec.backbone.pretrained, expected)
    tenant = caller.tenant
    ready = await run_in_threadpool(path_checks.find_datasets, context.database, tenant, spec)
    problems = path_checks.tracking_problems(context.settings, spec)
    if spec.backbone.pretrained is None and not ready:
        return CheckedSpec(spec, problems)
    check = partial(path_checks.check_paths, context.settings, tenant, spec, ready)
    checked = await context.path_threads.run_for(caller.token_id, check)
    return replace(checked, problems=[*problems, *checked.problems])


SpecToSubmit = Annotated[CheckedSpec, Depends(_to_submit)]
"""The spec of the body, for callers who may submit."""
SpecToValidate = Annotated[CheckedSpec, Depends(_to_validate)]
"""The spec of the body; its paths are checked only for callers who may submit."""
CloneToSubmit = Annotated[CheckedClone, Depends(_to_clone)]
"""The clone of the path's job that the body describes, for callers who may submit."""
