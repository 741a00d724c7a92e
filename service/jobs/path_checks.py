"""Check that the folders and weights named by a spec are allowed and exist."""

from __future__ import annotations

from pathlib import Path

from dasl_core.spec import FieldProblem, JobSpec
from dasl_core.spec.locations import OUTSIDE, WEIGHTS_ENDINGS, is_allowed, local_path
from service.datasets import repository as datasets
from service.db.models import Dataset
from service.db.session import Database
from service.settings import Settings
from service.states import DatasetState


def path_problems(
    settings: Settings, database: Database, tenant: str, spec: JobSpec
) -> list[FieldProblem]:
    """Return the problems with the paths that a spec names.

    No transaction is open while paths are checked, as a file system may hang.
    """
    problems = _weights_problems(settings, spec.backbone.pretrained)
    names = {"dataset": spec.dataset, "evaluate.dataset": spec.evaluate.dataset}
    with database.autocommit() as session:
        by_field = {
            field: datasets.find(session, tenant, name)
            for field, name in names.items()
            if name is not None
        }
    for field, dataset in by_field.items():
        if dataset is not None and dataset.state == DatasetState.READY:
            problems += _folder_problems(settings, field, str(names[field]), dataset)
    return problems


def _weights_problems(settings: Settings, pretrained: str | None) -> list[FieldProblem]:
    if pretrained is None:
        return []
    field, expected = "backbone.pretrained", "an absolute path, or a file:// URI, as workers see it"
    try:
        path = local_path(pretrained)
    except ValueError as error:
        return [FieldProblem(field, str(error), pretrained, expected)]
    if not is_allowed(path, settings.dataset_roots, resolve_links=settings.check_paths):
        return [FieldProblem(field, OUTSIDE, pretrained, _in_roots(settings, "weights"))]
    if not settings.check_paths:
        return []
    try:
        if not path.exists():
            return [FieldProblem(field, "does not exist on the server", pretrained, expected)]
        # A folder is assumed to be a DASL checkpoint, which the worker checks.
        if not path.is_dir() and path.suffix not in WEIGHTS_ENDINGS:
            endings = ", ".join(WEIGHTS_ENDINGS)
            return [
                FieldProblem(field, "is not a file of weights", pretrained, f"one of {endings}")
            ]
    except OSError as error:
        return [FieldProblem(field, f"cannot be read: {error.strerror}", pretrained, expected)]
    return []


def _folder_problems(
    settings: Settings, field: str, name: str, dataset: Dataset
) -> list[FieldProblem]:
    if not is_allowed(dataset.uri, settings.dataset_roots, resolve_links=settings.check_paths):
        message = f"was ingested, but its folder {dataset.uri} {OUTSIDE}"
        return [FieldProblem(field, message, name, _in_roots(settings, "a data set"))]
    reason = _why_unreadable(dataset.uri) if settings.check_paths else None
    if reason is not None:
        message = f"was ingested, but its folder {dataset.uri} {reason}"
        expected = (
            "a data set whose folder the server can read: mount it again, or delete the data set "
            "and register it again"
        )
        return [FieldProblem(field, message, name, expected)]
    return []


def _why_unreadable(folder: str) -> str | None:
    """Return why a folder cannot be read; `None` if it can."""
    try:
        return None if Path(folder).is_dir() else "is no longer there"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _in_roots(settings: Settings, kind: str) -> str:
    return f"{kind} in {' or '.join(map(str, settings.dataset_roots))}"
