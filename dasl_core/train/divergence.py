"""Detection of divergence: too many steps in a row without finite gradients."""

from collections.abc import Callable

from dasl_core.train.outcomes import Outcome
from dasl_core.train.run import Run


class DivergedError(ValueError):
    """The loss or the weights are no longer finite; a retry would fail in the same way."""


class DivergenceGuard:
    """Counts skipped steps, and fails the run after too many.

    Args:
        flush: called before the run fails, so that the metrics of its last steps are reported.
    """

    def __init__(self, run: Run, *, flush: Callable[[], object]) -> None:
        self.run, self.flush = run, flush

    def count(self, outcome: Outcome) -> None:
        """Count a completed step, and report it if it was skipped.

        Raises:
            DivergedError: more than `train.skip_not_finite` steps in a row were skipped.
        """
        progress = self.run.progress
        if outcome.overflowed:
            progress.overflowed += 1
            return
        if outcome.updated:
            progress.skipped_in_a_row = 0
            return
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        paths = self.run.data.index.paths
        names = [paths[index] for index in outcome.indices.tolist()]
        self.run.reporter.event(
            "step_skipped",
            f"step {outcome.step} was skipped: its gradients are not finite",
            {"step": outcome.step, "skipped": progress.skipped, "images": names[:100]},
        )
        if progress.skipped_in_a_row > self.run.spec.train.skip_not_finite:
            self.flush()
            few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise self.error(
                f"the gradients of {progress.skipped_in_a_row} steps in a row are not finite, the "
                f"last one's at step {outcome.step}, with the images {few}"
            )

    def check_updated(self, total_steps: int) -> None:
        """Fail the run if all of its steps were skipped: no weight was ever updated.

        Raises:
            DivergedError: every step was skipped.
        """
        progress = self.run.progress
        if progress.skipped + progress.overflowed < total_steps:
            return
        if progress.overflowed:
            raise DivergedError(
                f"no loss scale of float16 was found in {total_steps} steps, so none of them "
                "changed a weight; train for more steps, or with train.precision bf16"
            )
        raise self.error(f"none of the {total_steps} steps had finite gradients")

    def error(self, problem: str) -> DivergedError:
        """The error for a problem, with advice."""
        lr = self.run.spec.train.optimizer.lr
        return DivergedError(f"{problem}; try a lower train.optimizer.lr than {lr} or more warm-up")
