"""Reports of ingest runs; each is checked against the data set's newest run."""

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from dasl_core.spec.locations import only
from dasl_core.spec.source import SourceOptions
from dasl_core.vocabulary import Desired
from service.artifacts.storage import Storage
from service.datasets import repository as datasets
from service.datasets.ingests import repository as ingests
from service.db.models import DatasetVersion, IngestRun
from service.db.rows import add
from service.protocol import IngestReport, IngestStart, readable_fields
from service.runs import repository as runs
from service.settings import Settings
from service.states import AttemptState, DatasetState, StaleAttempt
from service.worker_api.fencing import check_below, newest_run
from service.worker_api.ingest_estimate import record_progress


class IngestSession:
    """Handler of one ingest run's requests. The row of its data set is locked.

    Raises:
        StaleAttempt: the data set was deleted, or the run was superseded or got another token.
    """

    def __init__(self, session: Session, dataset_id: str, number: int, token: str) -> None:
        self.session = session
        dataset = datasets.lock(session, dataset_id)
        if dataset is None:
            raise StaleAttempt(f"the data set {dataset_id} was deleted")
        self.dataset = dataset
        self.run = newest_run(session, IngestRun, dataset_id, number, token)

    def start(self, storage: Storage, settings: Settings) -> IngestStart:
        """Mark the run as running and return its settings."""
        self._check_not_over()
        dataset_id = self.dataset.id
        runs.move(self.session, IngestRun, dataset_id, self.run.number, AttemptState.RUNNING)
        readable = settings.readable_folders(self.dataset.tenant)
        if self.dataset.upload_folder is not None:
            readable = only(self.dataset.upload_folder)
        return IngestStart(
            uri=self.dataset.uri,
            source=SourceOptions.model_validate(self.dataset.source or {}),
            artifacts_uri=storage.dataset_uri(dataset_id),
            # After the first ingest, every ingest is a refresh.
            previous_index_uri=self.dataset.index_uri,
            heartbeat_seconds=settings.heartbeat_seconds,
            **readable_fields(readable),
        )

    def heartbeat(self, progress: dict[str, object]) -> Desired:
        """Record a heartbeat and its progress; return "run": the API never requests that an ingest stops."""
        self._check_not_over()
        self.dataset.progress = record_progress(self.run, self.dataset.progress, progress)
        return "run"

    def finish(self, report: IngestReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        dataset = self.dataset
        succeeded = report.state == "succeeded"
        if self.run.state == report.state:
            return
        if report.index_uri is not None:
            check_below(report.index_uri, storage.dataset_uri(dataset.id), "index_uri")
        version, columns = None, {}
        if succeeded and report.index_uri != dataset.index_uri:
            version = self._new_version(report)
            copied = ("facts", "report", "index_uri")
            columns = {name: getattr(version, name) for name in copied}
            columns["version"] = version.number
        moved = ingests.end_ingest(
            self.session,
            dataset.id,
            self.run.number,
            DatasetState.READY if succeeded else DatasetState.FAILED,
            error=report.error.model_dump() if report.error else None,
            **columns,
        )
        if not moved:
            raise StaleAttempt(f"the ingest of {dataset.id} is over")
        if version is not None:
            add(self.session, version)

    def _new_version(self, report: IngestReport) -> DatasetVersion:
        dataset = self.dataset
        assert report.facts is not None, "checked by IngestReport"
        return DatasetVersion(
            dataset_id=dataset.id,
            number=dataset.version if dataset.index_uri is None else dataset.version + 1,
            index_uri=report.index_uri,
            facts=report.facts.model_dump(mode="json"),
            report=report.report,
            created_at=datetime.now(UTC),
        )

    def _check_not_over(self) -> None:
        states = (self.dataset.state, self.dataset.refresh_state)
        if DatasetState.INGESTING not in states:
            raise StaleAttempt(f"the ingest of {self.dataset.id} is over")
