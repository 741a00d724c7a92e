"""Register complete checkpoints that ended attempts did not report; remove incomplete ones after a day.

A checkpoint is complete once its manifest, the last file, is written. An attempt leaves unregistered
checkpoints if it ended while it could not reach the API. Only the attempt writes to its folder, and its
processes have ended.
"""

import logging
from datetime import datetime, timedelta
from itertools import takewhile

from pydantic import ValidationError

from dasl_core.manifest import MANIFEST
from service import registration
from service.checkpoints import repository as checkpoints
from service.db.locks import lock_job
from service.db.models import CHECKPOINT_SWEEP
from service.db.session import AWAY
from service.dispatcher import repository
from service.dispatcher.context import DispatcherContext, LeaseLost, passed
from service.dispatcher.isolation import run_isolated
from service.protocol import CheckpointManifest
from service.scheduling import repository as scheduling
from service.scheduling.repository import AttemptView, Ended
from service.states import TERMINAL
from service.storage.clock import removal_time

logger = logging.getLogger(__name__)

_SWEEP_AFTER = timedelta(days=1)
# The first sweep of a database begins with the attempts that ended after this time.
_SWEEP_BACK_TO = timedelta(days=30)
_SWEEP_EVERY = timedelta(hours=1)
_BATCH_SIZE = 20
# A sweep does not pass an attempt whose files cannot be read, until so many have tried.
_SWEEP_TRIES = 3
# An unavailable store delays the next attempt, which needs it too, for this long.
_STORE_PATIENCE = timedelta(minutes=10)
_STORE_PAUSE = timedelta(seconds=30)
_MAX_MANIFEST_BYTES = 4 << 20


class Adoption:
    """Registers complete checkpoints of ended attempts, and removes the others after a day."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._failed_at: dict[str, datetime] = {}
        """When the store last failed, by submission id."""
        self._swept_at: datetime | None = None
        self._tries: dict[str, int] = {}
        """How many sweeps failed to examine an attempt, by submission id."""

    def adopt(self, attempt: AttemptView) -> bool:
        """Register the complete checkpoints that an ended attempt did not; return whether that is done.

        If the store fails and another attempt may follow, the caller retries for some minutes. `sweep` finds
        missed checkpoints a day later.
        """
        assert attempt.finished_at is not None
        now, name = self._context.clock(), attempt.submission_id
        if name in self._failed_at and not passed(self._failed_at[name], now, _STORE_PAUSE):
            return False
        if not self._was_adopted(attempt):
            # If the job has ended, its attempt must not hold resources because the store fails.
            follows = attempt.status not in TERMINAL
            if follows and not passed(attempt.finished_at, now, _STORE_PATIENCE):
                return False
        self._failed_at.pop(name, None)
        return True

    def _was_adopted(self, attempt: AttemptView) -> bool:
        if self._context.store_is_away:
            return False
        try:
            with self._context.watch_store():
                self._adopt(attempt)
        except (LeaseLost, *AWAY):
            raise
        except Exception as error:  # noqa: BLE001  # fsspec backends raise errors of any type
            name = attempt.submission_id
            logger.warning("The checkpoints of %s cannot be examined now: %s", name, error)
            self._failed_at[name] = self._context.clock()
            return False
        return True

    def sweep(self) -> None:
        """Adopt complete checkpoints of attempts that ended a day ago, and remove incomplete ones."""
        now = self._context.clock()
        if not passed(self._swept_at, now, _SWEEP_EVERY):
            return
        with self._context.database.read() as session:
            if (time := removal_time(session, now)) is None:
                self._swept_at = now
                return
            # Those that are not finalized yet have their turn before later ones.
            waiting = [attempt.finished_at for attempt in scheduling.ended_attempts(session)]
            attempts = scheduling.finalized_attempts(
                session,
                after=repository.swept_until(session, CHECKPOINT_SWEEP)
                or Ended(time - _SWEEP_BACK_TO),
                before=min([time - _SWEEP_AFTER, *(at for at in waiting if at is not None)]),
                limit=_BATCH_SIZE,
            )
        failed = {attempt.submission_id: attempt for attempt in attempts}

        def sweep(attempt: AttemptView) -> None:
            self.sweep_attempt(attempt)
            del failed[attempt.submission_id]

        for attempt in attempts:
            run_isolated(sweep, attempt, "examine the checkpoints of this attempt")
        # If all failed, the store is away, which is no try.
        is_away = len(failed) == len(attempts)
        self._tries = {name: self._tries.get(name, 0) + (not is_away) for name in failed}
        stays = {name for name, tries in self._tries.items() if tries < _SWEEP_TRIES}
        done = list(takewhile(lambda attempt: attempt.submission_id not in stays, attempts))
        if done:
            with self._context.write() as session:
                repository.keep_place(session, CHECKPOINT_SWEEP, Ended.from_view(done[-1]))
        if len(done) < _BATCH_SIZE:
            self._swept_at = now

    def sweep_attempt(self, attempt: AttemptView) -> None:
        """Adopt the complete checkpoints of an attempt, and remove its unregistered folders."""
        for uri in self._adopt(attempt):
            logger.info("%s is an incomplete checkpoint and is removed", uri)
            self._context.storage.remove(uri)

    def _adopt(self, attempt: AttemptView) -> list[str]:
        """Register complete checkpoints of an attempt; return its other unregistered folders."""
        rest = []
        for uri in self._unregistered(attempt):
            manifest = self._manifest_of_whole(uri, attempt)
            if manifest is None:
                rest.append(uri)
                continue
            with self._context.write() as session:
                job = lock_job(session, attempt.job_id)
                assert job is not None, "an attempt has a job"
                registration.register(
                    session, job, attempt.number, manifest.report(uri), adopted=True
                )
            logger.info("%s was not registered and is adopted", uri)
        return rest

    def _unregistered(self, attempt: AttemptView) -> list[str]:
        storage = self._context.storage
        with self._context.database.read() as session:
            uris = checkpoints.attempt_uris(session, attempt.job_id, attempt.number)
        # Compare paths below the attempt's folder: the API may write the root differently.
        folder = f"/jobs/{attempt.job_id}/attempts/{attempt.number}/"
        if not all(folder in uri for uri in uris):
            logger.warning(
                "Checkpoints of %s are in another store and are not examined", attempt.submission_id
            )
            return []
        registered = [uri.partition(folder)[2] + "/" for uri in uris]
        folders = storage.folders(storage.checkpoints_uri(attempt.job_id, attempt.number))
        return [
            uri
            for uri in folders
            if not any(path.startswith(uri.partition(folder)[2] + "/") for path in registered)
        ]

    def _manifest_of_whole(self, uri: str, attempt: AttemptView) -> CheckpointManifest | None:
        """Return the manifest of a folder if this attempt wrote it and all its files have their size.

        Their SHA-256 is checked by the attempt that resumes from it.
        """
        storage = self._context.storage
        sizes = storage.file_sizes(uri)
        size = sizes.get(MANIFEST, 0)
        if not 0 < size <= _MAX_MANIFEST_BYTES:
            return None
        content = b"".join(storage.read(f"{uri}/{MANIFEST}", 0, size))
        try:
            manifest = CheckpointManifest.model_validate_json(content)
        except ValidationError as error:
            logger.warning("The manifest in %s is damaged: %s", uri, error.errors()[0]["msg"])
            return None
        # Do not compare submission ids: a restored database repeats an attempt whose files still exist.
        if (manifest.job, manifest.attempt) != (attempt.job_id, attempt.number):
            logger.warning("%s is of attempt %d of %.60r", uri, manifest.attempt, manifest.job)
            return None
        wrong = [name for name, size in manifest.size.items() if sizes.get(name) != size]
        if wrong:
            logger.warning("%s is damaged: %s has another size or is missing", uri, wrong[0])
            return None
        return manifest
