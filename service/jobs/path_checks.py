"""Check that the folders and weights that a spec names exist, and that they and its servers are allowed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dasl_core.spec import Backbone, FieldProblem, JobSpec, WeightsRecord, read_record
from dasl_core.spec.locations import (
    CHECKPOINT_WEIGHTS,
    OUTSIDE,
    WEIGHTS_ENDINGS,
    ReadableFolders,
    local_path,
)
from dasl_core.spec.normalization import describing_files
from dasl_core.spec.source import is_pattern, remote_scheme
from dasl_core.spec.weights import weights_problem
from dasl_core.spec.weights_record import NO_RECORD
from service.datasets.versions import service as versions
from service.db.models import Dataset
from service.db.session import Database
from service.settings import Settings
from service.states import DatasetState


@dataclass(frozen=True)
class CheckedSpec:
    """A spec, and the results of checking the paths that it names.

    Attributes:
        problems: problems of the paths.
        record: record of the weights to start from; empty if the server cannot read them.
    """

    spec: JobSpec
    problems: Sequence[FieldProblem] = ()
    record: WeightsRecord = NO_RECORD


def find_datasets(database: Database, tenant: str, spec: JobSpec) -> dict[str, Dataset]:
    """Return the ready data sets of a spec, by field."""
    with database.autocommit() as session:
        rows = {
            field: versions.find(session, tenant, name)[0]
            for field, name in _named_datasets(spec).items()
        }
    return {
        field: row
        for field, row in rows.items()
        if row is not None and row.state == DatasetState.READY
    }


def check_paths(
    settings: Settings, tenant: str, spec: JobSpec, ready: Mapping[str, Dataset]
) -> CheckedSpec:
    """Check the paths that a spec names, without a database connection, as a file system may hang.

    Args:
        ready: data sets by field, from `find_datasets`.
    """
    record, pretrained = NO_RECORD, spec.backbone.pretrained
    readable = settings.readable_folders(tenant)
    problems = _weights_problems(settings, readable, pretrained)
    if pretrained is not None and settings.check_paths and not problems:
        record, problems = _read_weights(readable, pretrained, spec.backbone)
    names = _named_datasets(spec)
    for field, dataset in ready.items():
        problems += _images_problems(settings, readable, field, names[field], dataset)
    return CheckedSpec(spec, problems, record)


def tracking_problems(settings: Settings, spec: JobSpec) -> list[FieldProblem]:
    """Check that workers may send metrics to the tracker's address."""
    mlflow, hosts = spec.track.mlflow, settings.allowed_tracking_hosts
    if mlflow is None or mlflow.is_allowed(hosts):
        return []
    message = "cannot be used here: jobs may not log to this server"
    expected = (
        f"a server on {' or '.join(hosts)}" if hosts else "null; the service allows no server"
    )
    return [FieldProblem("track.mlflow.tracking_uri", message, mlflow.tracking_uri, expected)]


def _named_datasets(spec: JobSpec) -> dict[str, str]:
    """Return the names of a spec's data sets, by field."""
    names = {"dataset": spec.dataset, "evaluate.dataset": spec.evaluate.dataset}
    return {field: name for field, name in names.items() if name is not None}


def _weights_problems(
    settings: Settings, readable: ReadableFolders, pretrained: str | None
) -> list[FieldProblem]:
    if pretrained is None:
        return []
    field, expected = "backbone.pretrained", "an absolute path, or a file:// URI, as workers see it"
    try:
        path = local_path(pretrained)
    except ValueError as error:
        expected += "; published weights are not downloaded by their names"
        return [FieldProblem(field, str(error), pretrained, expected)]
    if not readable.allow(path):
        return [FieldProblem(field, OUTSIDE, pretrained, readable.expected("weights"))]
    if not settings.check_paths:
        return []
    try:
        if not path.exists():
            return [FieldProblem(field, "does not exist on the server", pretrained, expected)]
        # Opening a pipe would block until its other end opens.
        if not path.is_dir() and (path.suffix not in WEIGHTS_ENDINGS or not path.is_file()):
            endings = ", ".join(WEIGHTS_ENDINGS)
            return [
                FieldProblem(field, "is not a file of weights", pretrained, f"one of {endings}")
            ]
    except OSError as error:
        return [FieldProblem(field, f"cannot be read: {error.strerror}", pretrained, expected)]
    return []


def _read_weights(
    readable: ReadableFolders, pretrained: str, backbone: Backbone
) -> tuple[WeightsRecord, list[FieldProblem]]:
    """Read the record of weights, only from files that may be read, and check that the backbone can load them."""
    field, path = "backbone.pretrained", local_path(pretrained)
    try:
        # The weights of a checkpoint are in its folder.
        for file in (*describing_files(path), path / CHECKPOINT_WEIGHTS):
            if not readable.allow(file):
                message = f"has a related file, {file}, that {OUTSIDE}"
                expected = readable.expected("weights")
                return NO_RECORD, [FieldProblem(field, message, pretrained, expected)]
        record = read_record(path)
    except (OSError, ValueError) as error:
        # Perhaps only workers can read the weights; they compare the record.
        if isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError):
            return NO_RECORD, []
        message = str(error).removeprefix(f"{field}: ")
        return NO_RECORD, [FieldProblem(field, message, pretrained)]
    if problem := weights_problem(path, backbone):
        expected = (
            "a checkpoint of DASL, or a file of weights, of the network that backbone.name names"
        )
        return record, [FieldProblem(field, problem, pretrained, expected)]
    return record, []


def _images_problems(
    settings: Settings, readable: ReadableFolders, field: str, name: str, dataset: Dataset
) -> list[FieldProblem]:
    uri, is_remote = dataset.uri, remote_scheme(dataset.uri) is not None
    # The service chose the folder of an upload, and workers may read it.
    if dataset.upload_folder is None and not (
        readable.allow_uri(uri) if is_remote else readable.allow_tree(uri)
    ):
        message = f"was ingested, but its folder {uri} {OUTSIDE}"
        return [FieldProblem(field, message, name, readable.expected("a data set"))]
    # Workers check whether an object store has the images.
    reason = _why_unreadable(uri) if settings.check_paths and not is_remote else None
    if reason is not None:
        message = f"was ingested, but its folder {uri} {reason}"
        expected = (
            "a data set whose folder the server can read: mount it again, or delete the data set "
            "and register it again"
        )
        return [FieldProblem(field, message, name, expected)]
    return []


def _why_unreadable(location: str) -> str | None:
    """Return why a folder or file cannot be read; `None` if it can."""
    path = Path(location)
    try:
        if path.exists() or (is_pattern(path.name) and path.parent.exists()):
            return None
        return "no longer exists"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
