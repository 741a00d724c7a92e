"""The figures of steps: kept on the device until a few steps are together, then read at once."""

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.distributed import mean_over_ranks
from dasl_core.regularizers import norm_distribution

SPREAD_IMAGES = 128  # a singular value decomposition of so few takes milliseconds


class StepFigures:
    """Scalars of the steps since the last report.

    Args:
        batch_size: global, for the speed.
    """

    def __init__(self, batch_size: int, device: torch.device) -> None:
        self.batch_size, self.device = batch_size, device
        self._pending: list[dict[str, Tensor]] = []
        self._since = time.perf_counter()

    def add(self, figures: dict[str, Tensor]) -> None:
        """Those of one more step; which there are may differ from step to step."""
        self._pending.append(figures)

    def flush(self) -> list[dict[str, float]]:
        """All that was added, means over ranks, oldest first, with ``images_per_second``.

        This waits for the device. All ranks must call it after the same steps.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return []
        names = list(dict.fromkeys(name for figures in pending for name in figures))
        missing = torch.tensor(float("nan"))
        rows = [
            torch.stack(
                [figures.get(name, missing).to(self.device, torch.float64) for name in names]
            )
            for figures in pending
        ]
        table = mean_over_ranks(torch.stack(rows)).tolist()
        now = time.perf_counter()
        speed = len(table) * self.batch_size / max(now - self._since, 1e-9)
        self._since = now
        return [
            {name: value for name, value in zip(names, row, strict=True) if name in figures}
            | {"images_per_second": speed}
            for row, figures in zip(table, pending, strict=True)
        ]

    def leave_out_time(self) -> None:
        """What was done since the last report was no training: it does not count for the speed."""
        self._since = time.perf_counter()


def embedding_figures(embeddings: Tensor) -> dict[str, Tensor]:
    """How long raw embeddings (V, B, h) are, and how far their directions spread."""
    rows = embeddings.flatten(0, 1).float()
    norms = norm_distribution(rows)
    directions = F.normalize(rows, dim=1)
    return {
        "embedding_norm": norms["mean"],
        "embedding_norm_std": norms["std"],
        "embedding_norm_min": norms["min"],
        "embedding_norm_max": norms["max"],
        "embedding_std": directions.std(dim=0).mean(),
    }


def spread_figures(embeddings: Tensor) -> dict[str, Tensor]:
    """How far apart the directions of different images lie, and in how many dimensions: of the first
    view of the first of this rank's images, from embeddings (V, B, h).

    What may collapse under a regularizer that aligns distances, whatever the backbone does below.
    """
    rows = embeddings[0, :SPREAD_IMAGES].detach().cpu().float()
    rows = F.normalize(rows.nan_to_num(), dim=1)  # no decomposition takes a NaN
    if len(rows) < 2:
        return {}
    distances = F.pdist(rows)
    values = torch.linalg.svdvals(rows)
    shares = (values / values.sum()).nan_to_num()  # all embeddings zero: one point, rank 1
    return {
        "embedding_distance": distances.mean(),
        "embedding_distance_std": distances.std(unbiased=False),
        "embedding_rank": torch.special.entr(shares).sum().exp(),
    }
