"""Ingest runs of data sets: started, and seen to their end.

A run only reads images and reports what it found, so running one twice does no harm; its token
decides whose report counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from service import credentials
from service.datasets import repository as datasets
from service.db.models import Dataset
from service.dispatcher import repository
from service.dispatcher.attempts import ended_error
from service.dispatcher.context import DispatcherContext
from service.dispatcher.executor import SubmissionRefused
from service.dispatcher.log_copier import last_lines

_RUNS = 2
# On Ray's head, each with a thread for every core; the others wait.
_AT_ONCE = 2
_LONGEST = timedelta(hours=24)


class Ingests:
    """The dispatcher's part that keeps ingest runs."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._seen_at: dict[str, datetime] = {}

    def due(self, session: Session) -> Sequence[Dataset]:
        """Data sets whose turn it is."""
        return datasets.awaiting_ingest(session, _AT_ONCE)

    def start(self, dataset: Dataset) -> None:
        """Begin the next run of a data set that waits for one."""
        token, hashed = credentials.new_token()
        with self._context.write() as session:
            number = datasets.begin_ingest(session, dataset.id, hashed)
        if number is None:
            return
        self._context.tokens[f"{dataset.id}-{number}"] = token
        self._submit(dataset.id, number)

    def watch(self, dataset: Dataset) -> None:
        """Look after a run; one that Ray does not know is handed in (again)."""
        submission_id = f"{dataset.id}-{dataset.attempt}"
        run = self._context.executor.status(submission_id)
        if run is None:
            if submission_id not in self._context.tokens:
                hashed = self._context.new_token(submission_id)
                with self._context.write() as session:
                    replaced = repository.replace_ingest_token(
                        session, dataset.id, dataset.attempt, hashed
                    )
                if not replaced:
                    return
            self._submit(dataset.id, dataset.attempt)
        elif run.state.ended:
            error = ended_error("ingest", run, last_lines(self._context.executor, submission_id))
            state = datasets.PENDING if dataset.attempt < _RUNS else datasets.FAILED
            self._end(dataset, state, error)
        elif self._takes_too_long(submission_id):
            self._context.executor.stop(submission_id)
            hours = _LONGEST / timedelta(hours=1)
            message = f"The ingest took longer than {hours:g} hours: do the images' disks answer?"
            self._end(dataset, datasets.FAILED, {"type": "too-long", "message": message})

    def _takes_too_long(self, submission_id: str) -> bool:
        # From when this dispatcher saw it first: a run that hangs must not keep others waiting for ever.
        now = self._context.clock()
        # Those that reported their end are not heard of again here.
        self._seen_at = {id: at for id, at in self._seen_at.items() if now - at < 2 * _LONGEST}
        return now - self._seen_at.setdefault(submission_id, now) > _LONGEST

    def _end(self, dataset: Dataset, state: str, error: dict[str, Any]) -> None:
        self._seen_at.pop(f"{dataset.id}-{dataset.attempt}", None)
        with self._context.write() as session:
            datasets.end_ingest(session, dataset.id, dataset.attempt, state, error=error)

    def _submit(self, dataset_id: str, number: int) -> None:
        command = self._context.entrypoints.ingest.format(dataset=dataset_id)
        try:
            self._context.submit(f"{dataset_id}-{number}", command)
        except SubmissionRefused as refusal:
            error = {"type": "submission-refused", "message": f"Ray refuses the ingest: {refusal}"}
            with self._context.write() as session:
                datasets.end_ingest(session, dataset_id, number, datasets.FAILED, error=error)
