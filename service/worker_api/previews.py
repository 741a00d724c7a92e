"""Reports of preview runs; each is checked against the preview's newest run."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from dasl_core.spec import versions
from dasl_core.vocabulary import Desired
from service.artifacts.storage import Storage
from service.datasets import repository as datasets
from service.db.models import PreviewRun
from service.previews import repository as previews
from service.protocol import PreviewReport, PreviewStart, readable_fields
from service.runs import liveness
from service.runs import repository as runs
from service.settings import Settings
from service.states import AttemptState, PreviewState, StaleAttempt
from service.worker_api import datasets as worker_datasets
from service.worker_api.fencing import newest_run
from service.worker_api.paths import check_below


class PreviewSession:
    """Handler of one preview run's requests. The row of the preview is locked.

    Raises:
        StaleAttempt: the preview was deleted, or the run was superseded or got another token.
    """

    def __init__(self, session: Session, preview_id: str, number: int, token: str) -> None:
        self.session = session
        preview = previews.lock(session, preview_id)
        if preview is None:
            raise StaleAttempt(f"the preview {preview_id} was deleted")
        self.preview = preview
        self.run = newest_run(session, PreviewRun, preview_id, number, token)

    def start(self, storage: Storage, settings: Settings) -> PreviewStart:
        """Mark the run as running and return all that it needs.

        Raises:
            UnreadableSpec: the worker could not read the spec.
        """
        self._check_not_over()
        preview = self.preview
        versions.load(preview.resolved, preview.spec_version)
        runs.move(self.session, PreviewRun, preview.id, self.run.number, AttemptState.RUNNING)
        if preview.dataset_version is None:
            preview.dataset_version = datasets.by_id(self.session, preview.dataset_id).version
        return PreviewStart(
            spec=versions.for_older(versions.upgrade(preview.resolved, preview.spec_version)),
            images=preview.images,
            dataset=worker_datasets.of_version(
                self.session, preview.dataset_id, preview.dataset_version
            ),
            dataset_version=preview.dataset_version,
            artifacts_uri=storage.preview_uri(preview.id),
            **readable_fields(settings.readable_folders(preview.tenant)),
        )

    def heartbeat(self, progress: dict[str, object]) -> Desired:
        """Record a heartbeat; return "run": the API never requests that a preview stops."""
        self._check_not_over()
        liveness.record_heartbeat(self.run, datetime.now(UTC))
        return "run"

    def finish(self, report: PreviewReport, storage: Storage) -> None:
        """Record how the run ended. Idempotent."""
        preview = self.preview
        if preview.state == report.state:
            return
        if report.uri is not None:
            check_below(report.uri, storage.preview_uri(preview.id))
        succeeded = report.state == "succeeded"
        moved = previews.end(
            self.session,
            preview.id,
            self.run.number,
            PreviewState(report.state),
            run_state=AttemptState.SUCCEEDED if succeeded else AttemptState.FAILED,
            uri=report.uri,
            files=[entry.model_dump() for entry in report.files],
            size=sum(entry.size for entry in report.files) if succeeded else None,
            error=report.error and report.error.model_dump(),
        )
        if not moved:
            raise StaleAttempt(f"the run of {preview.id} is over")

    def _check_not_over(self) -> None:
        if self.preview.state != PreviewState.RUNNING:
            raise StaleAttempt(f"the run of {self.preview.id} is over")
