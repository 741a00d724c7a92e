"""Dependencies that load the job of the request path, if it belongs to the caller's tenant."""

from typing import Annotated

from service.api.own import to_change, to_read
from service.db.models import Job
from service.jobs import service

OwnJob = Annotated[Job, to_read("job_id", service.get)]
"""The job of the path, if it belongs to the caller's tenant; otherwise 404. Needs a `ReadSession`."""
OwnJobToChange = Annotated[Job, to_change("job_id", service.get)]
"""Like `OwnJob`, for callers who may submit. Needs a `WriteSession`."""
