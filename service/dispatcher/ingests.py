"""Ingest runs of data sets: starting, watching and ending them.

A run only reads images and reports on them, so running one twice is harmless; its token decides
which report counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from service import credentials, ids
from service.datasets import repository as datasets
from service.datasets.repository import IngestView
from service.db.models import Dataset, IngestRun
from service.dispatcher.attempts import ended_error
from service.dispatcher.context import DispatcherContext
from service.dispatcher.executor import SubmissionRefused
from service.dispatcher.log_copier import last_lines
from service.runs import repository as runs
from service.states import AttemptState

_RUNS = 2
# Concurrent runs. Each uses all cores of Ray's head.
_AT_ONCE = 2
_LONGEST = timedelta(hours=24)


class Ingests:
    """Starts, watches and ends ingest runs."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._seen_at: dict[str, datetime] = {}

    def adopt(self) -> None:
        """Restart ingests that a version 0.1 dispatcher started during the upgrade of the tables."""
        with self._context.database.read() as session:
            orphans = datasets.without_ingest_run(session)
        for dataset_id in orphans:
            with self._context.write() as session:
                datasets.ingest_again(session, dataset_id)

    def due(self, session: Session) -> Sequence[Dataset]:
        """Return the data sets to ingest next."""
        return datasets.awaiting_ingest(session, _AT_ONCE)

    def start(self, dataset: Dataset) -> None:
        """Start the next ingest run of a pending data set."""
        token, hashed = credentials.new_token()
        with self._context.write() as session:
            number = datasets.begin_ingest(session, dataset.id, hashed)
        if number is None:
            return
        run = IngestView(dataset.id, number, ids.submission_id(dataset.id, number))
        self._context.tokens[run.submission_id] = token
        self._submit(run)

    def watch(self, run: IngestView) -> None:
        """Submit a run that Ray does not know; record a run that ended; stop one that takes too long."""
        submission = self._context.executor.status(run.submission_id)
        if submission is None:
            if run.submission_id not in self._context.tokens:
                hashed = self._context.new_token(run.submission_id)
                with self._context.write() as session:
                    replaced = runs.replace_token(
                        session, IngestRun, run.dataset_id, run.number, hashed
                    )
                if not replaced:
                    return
            self._submit(run)
        elif submission.state.ended:
            lines = last_lines(self._context.executor, run.submission_id)
            error = ended_error("ingest", submission, lines)
            state = datasets.PENDING if run.number < _RUNS else datasets.FAILED
            self._end(run, state, error)
        elif self._takes_too_long(run.submission_id):
            self._context.executor.stop(run.submission_id)
            hours = _LONGEST / timedelta(hours=1)
            message = f"The ingest took longer than {hours:g} hours: do the images' disks answer?"
            self._end(run, datasets.FAILED, {"type": "too-long", "message": message})

    def _takes_too_long(self, submission_id: str) -> bool:
        # Measured from this dispatcher's first check of the run: a hanging run must not block others.
        now = self._context.clock()
        # Runs that reported their end never come back here, so old entries are dropped.
        self._seen_at = {id: at for id, at in self._seen_at.items() if now - at < 2 * _LONGEST}
        return now - self._seen_at.setdefault(submission_id, now) > _LONGEST

    def _end(self, run: IngestView, state: str, error: dict[str, Any]) -> None:
        self._seen_at.pop(run.submission_id, None)
        with self._context.write() as session:
            datasets.end_ingest(session, run.dataset_id, run.number, state, error=error)

    def _submit(self, run: IngestView) -> None:
        command = self._context.entrypoints.ingest.format(dataset=run.dataset_id)
        try:
            self._context.submit(run.submission_id, command)
        except SubmissionRefused as refusal:
            error = {"type": "submission-refused", "message": f"Ray refuses the ingest: {refusal}"}
            self._end(run, datasets.FAILED, error)
            return
        with self._context.write() as session:
            runs.move(
                session,
                IngestRun,
                run.dataset_id,
                run.number,
                AttemptState.SUBMITTED,
                sources={AttemptState.CREATED},
            )
