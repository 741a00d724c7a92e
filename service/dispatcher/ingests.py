"""Ingest runs of data sets: started, and seen to their end.

A run only reads images and reports what it found, so running one twice does no harm; its token
decides whose report counts.
"""

from __future__ import annotations

from service import auth
from service.datasets import repository as datasets
from service.db.models import Dataset
from service.dispatcher import repository
from service.dispatcher.attempts import ended_error
from service.dispatcher.executor import SubmissionRefused
from service.dispatcher.logs import last_lines
from service.dispatcher.shared import Shared

_RUNS = 2


class Ingests:
    """The dispatcher's part that keeps ingest runs."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def start(self, dataset: Dataset) -> None:
        """Begin the next run of a data set that waits for one."""
        token, hashed = auth.new_token()
        with self._shared.write() as session:
            number = datasets.begin_ingest(session, dataset.id, hashed)
        if number is None:
            return
        self._shared.tokens[f"{dataset.id}-{number}"] = token
        self._submit(dataset.id, number)

    def watch(self, dataset: Dataset) -> None:
        """Look after a run; one that Ray does not know is handed in (again)."""
        submission_id = f"{dataset.id}-{dataset.attempt}"
        run = self._shared.executor.status(submission_id)
        if run is None:
            if submission_id not in self._shared.tokens:
                hashed = self._shared.new_token(submission_id)
                with self._shared.write() as session:
                    replaced = repository.replace_ingest_token(
                        session, dataset.id, dataset.attempt, hashed
                    )
                if not replaced:
                    return
            self._submit(dataset.id, dataset.attempt)
        elif run.state.ended:
            error = ended_error("ingest", run, last_lines(self._shared.executor, submission_id))
            state = datasets.PENDING if dataset.attempt < _RUNS else datasets.FAILED
            with self._shared.write() as session:
                datasets.end_ingest(session, dataset.id, dataset.attempt, state, error=error)

    def _submit(self, dataset_id: str, number: int) -> None:
        command = self._shared.entrypoints.ingest.format(dataset=dataset_id)
        try:
            self._shared.submit(f"{dataset_id}-{number}", command)
        except SubmissionRefused as refusal:
            error = {"type": "submission-refused", "message": f"Ray refuses the ingest: {refusal}"}
            with self._shared.write() as session:
                datasets.end_ingest(session, dataset_id, number, datasets.FAILED, error=error)
