"""Stop requests during steps, and during long work between them such as evaluations."""

from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist

from dasl_core.distributed import broadcast_int
from dasl_core.train.progress import Progress
from dasl_core.train.reporter import Reporter
from dasl_core.vocabulary import Desired

_CHOICES: tuple[Desired, ...] = ("run", "cancel", "pause")


class Interrupted(Exception):
    """The user requested to stop. Raised on all ranks at the same point."""

    def __init__(self, outcome: Literal["cancelled", "paused"]) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True)
class Interruption:
    """Decides for all ranks, over their CPU group if there are several, whether to continue or to stop."""

    reporter: Reporter
    progress: Progress
    control: dist.ProcessGroup | None

    def check_step(self, *, save: bool = False) -> bool:
        """Raise `Interrupted` if the run must stop before its next step. All ranks must call it.

        Args:
            save: whether this rank wants to save a checkpoint now.

        Returns:
            What rank 0 passed as `save`.

        Raises:
            Interrupted: the user requested to stop.
        """
        return self._decide(self.reporter.desired(), save=save)

    def check_work(self) -> None:
        """Signal that the run is alive, and check as in `check_step`. All ranks must call it.

        Raises:
            Interrupted: the user requested to stop, unless the run has ended and only draws plots.
        """
        desired = self.reporter.keepalive()
        if not self.progress.ended:
            self._decide(desired)

    def _decide(self, desired: Desired, *, save: bool = False) -> bool:
        # One broadcast for both, to save a round trip between the nodes.
        choice = _CHOICES.index(desired) + len(_CHOICES) * save
        saves, index = divmod(broadcast_int(choice, self.control), len(_CHOICES))
        desired = _CHOICES[index]
        if desired != "run":
            raise Interrupted("cancelled" if desired == "cancel" else "paused")
        return bool(saves)
