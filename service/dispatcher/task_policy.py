"""Rules for runs of tasks, such as previews and embeddings, in addition to `rerun_policy`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from service.db.models import Run
from service.dispatcher.context import DispatcherContext
from service.dispatcher.rerun_policy import RerunPolicy, state_of
from service.runs.endings import Ending
from service.runs.repository import RunView, WatchedRun
from service.states import TaskState
from service.tasks.repository import Tasks, model_runs, preparations, previews, searches


class TaskPolicy(RerunPolicy):
    """Rules for runs of tasks of one kind."""

    max_concurrent: int
    max_failures = 2

    def __init__(self, context: DispatcherContext, tasks: Tasks[Any]) -> None:
        super().__init__(context)
        self.tasks = tasks

    def due(self, session: Session) -> Sequence[str]:
        """Return the tasks to run next."""
        return self.tasks.awaiting(session, self.max_concurrent, self.pausing())

    def live(self, session: Session) -> Sequence[WatchedRun]:
        return self.tasks.running(session)

    def begin(self, session: Session, owner: str, token_hash: str) -> Run | None:
        return self.tasks.begin(session, owner, token_hash)

    def end(self, session: Session, run: RunView, ending: Ending) -> None:
        repeated = self.is_repeated(session, run, ending)
        state = TaskState.QUEUED if repeated else TaskState.FAILED
        error = ending.error
        self.tasks.end(
            session, run.owner, run.number, state, run_state=state_of(ending), error=error
        )

    @abstractmethod
    def command(self, run: RunView) -> str: ...


class PreviewPolicy(TaskPolicy):
    """Rules for runs that draw previews; each uses one core of Ray's head."""

    noun = "preview"
    max_concurrent = 2
    max_losses = 2
    time_limit = timedelta(minutes=15)

    def __init__(self, context: DispatcherContext) -> None:
        super().__init__(context, previews)

    def command(self, run: RunView) -> str:
        return self._context.entrypoints.preview.format(run=run.submission_id, preview=run.owner)

    def lost_message(self, cause: str, losses: int) -> str:
        return (
            f"{cause} ended {losses} times while the preview was drawn, perhaps for lack of memory. Check why Ray's "
            "head ended, then request it again, with fewer images or a smaller backbone.image_size"
        )


class PreparationPolicy(TaskPolicy):
    """Rules for runs that decode images; each uses all cores of Ray's head."""

    noun = "preparation"
    max_concurrent = 2
    # A loss of Ray may also end all trainings; this run only repeats one shard.
    max_losses = 3
    time_limit = timedelta(hours=24)

    def __init__(self, context: DispatcherContext) -> None:
        super().__init__(context, preparations)

    def command(self, run: RunView) -> str:
        return self._context.entrypoints.prepare.format(
            run=run.submission_id, preparation=run.owner
        )

    def lost_message(self, cause: str, losses: int) -> str:
        return (
            f"{cause} ended {losses} times while the images were decoded, perhaps for lack of memory. Check why Ray's "
            "head ended, give it more memory or make the largest images smaller, then request it again: it continues"
        )


class ModelRunPolicy(TaskPolicy):
    """Rules for runs that evaluate, embed with or export a finished model, on a free GPU or all cores of Ray's head."""

    noun = "model run"
    max_concurrent = 2
    max_losses = 3
    time_limit = timedelta(hours=24)

    def __init__(self, context: DispatcherContext) -> None:
        super().__init__(context, model_runs)

    def command(self, run: RunView) -> str:
        return self._context.entrypoints.model_run.format(
            run=run.submission_id, model_run=run.owner
        )

    def lost_message(self, cause: str, losses: int) -> str:
        return (
            f"{cause} ended {losses} times during the run of the model, perhaps for lack of memory. Check why Ray's "
            "head ended, and give it more memory, then request it again"
        )


class SearchPolicy(TaskPolicy):
    """Rules for runs that find neighbors on Ray's head; a run ends when no more queries arrive."""

    noun = "search"
    max_concurrent = 2
    max_losses = 2
    time_limit = timedelta(hours=24)

    def __init__(self, context: DispatcherContext) -> None:
        super().__init__(context, searches)

    def command(self, run: RunView) -> str:
        return self._context.entrypoints.search.format(run=run.submission_id, search=run.owner)

    def lost_message(self, cause: str, losses: int) -> str:
        return (
            f"{cause} ended {losses} times while neighbors were searched, perhaps for lack of memory. Check why Ray's "
            "head ended, then ask again"
        )
