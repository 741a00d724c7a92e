"""Step metrics: buffered on the device, averaged over ranks, reported, and checked for collapse."""

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.distributed import all_ranks, mean_over_ranks, rank, world_size
from dasl_core.headlines import ACCURACIES
from dasl_core.regularizers import norm_distribution
from dasl_core.tensors import HostCopy, to_device
from dasl_core.train.collapse import CollapseAlarm
from dasl_core.train.input_bound import InputWatch
from dasl_core.train.machine_use import MachineUse
from dasl_core.train.progress import Progress, RunLength
from dasl_core.train.reporter import Reporter
from dasl_core.train.timing import RecentTimes, StepTimer, Times
from dasl_core.vocabulary import TRAINED

# Metrics stay on the device for this many steps.
REPORT_EVERY_STEPS = 10
# Steps between two measurements that take forwards of their own, of up to half a step together: as few as make `PROBES` in
# a run, within these limits.
PROBES, PROBE_EVERY_STEPS = 20, (5, 100)
SPREAD_IMAGES = 128  # few enough for a singular value decomposition in milliseconds


class _Held(NamedTuple):
    """Steps whose metrics are on their way to the host.

    Attributes:
        step: number of steps, the last of these included.
        metrics: the columns of `table` that each step has, by metric.
        table: (steps, metrics of any step) float64, means over ranks.
        products: of the directions of the last step, from `spread_statistics`; None unless they are watched.
        beside: as given to `StepMetrics.hold`.
    """

    step: int
    metrics: list[dict[str, int]]
    table: HostCopy
    products: HostCopy | None
    watched: bool
    beside: dict[str, HostCopy]


class StepMetrics:
    """Collects the metrics of steps, reports them and the progress, and feeds the collapse alarm.

    A report has two parts, so that it need not wait for a GPU: `hold` lets the device compute and copy what is
    reported, and `deliver`, some steps later, reads it.

    Args:
        on_collapse: `train.collapse` of the spec.
        timer: measures activities; this rank's shares of the time are added to the last step's metrics.
        watch: detects steps that wait for images.
    """

    def __init__(
        self,
        length: RunLength,
        progress: Progress,
        reporter: Reporter,
        device: torch.device,
        on_collapse: Literal["ignore", "warn", "stop"],
        timer: StepTimer,
        watch: InputWatch,
    ) -> None:
        self.timer, self.watch = timer, watch
        self.use = MachineUse(device)
        self.length, self.progress, self.reporter = length, progress, reporter
        self.on_collapse = on_collapse
        self.device = device
        self._pending: list[dict[str, Tensor]] = []  # scalars of the steps since the last `hold`
        self._products: Tensor | None = None  # of the last of these steps
        self._held: deque[_Held] = deque()
        self._missing = torch.full((), math.nan, dtype=torch.float64, device=device)
        self._since = time.perf_counter()
        fewest, most = PROBE_EVERY_STEPS
        often = min(most, max(fewest, length.total_steps // PROBES))
        # A multiple of the steps between reports, unless it is shorter.
        self._probe_every = often - (
            often % REPORT_EVERY_STEPS if often > REPORT_EVERY_STEPS else 0
        )
        self._alarm = CollapseAlarm()
        self._latest: dict[str, float] | None = None  # of the last reported step
        self._times = Times(0.0, {})  # between the last two reports
        self._recent = RecentTimes()

    def is_due(self, step: int) -> bool:
        """Whether the metrics after the step with this index are reported with the expensive ones, and watched."""
        return self._is_nth(step, min(REPORT_EVERY_STEPS, self._probe_every))

    def is_probed(self, step: int) -> bool:
        """Whether the update of the step with this index, one that is due, is measured with forwards of its own."""
        return self._is_nth(step, self._probe_every)

    def _is_nth(self, step: int, steps: int) -> bool:
        return (step + 1) % steps == 0 or step + 1 == self.length.total_steps

    def add(self, metrics: dict[str, Tensor], embeddings: Tensor, *, spread: bool) -> None:
        """Buffer one step's scalars. Keys may differ between steps.

        Args:
            embeddings: (V, B, h) raw embeddings of this rank's share, whose statistics are added.
            spread: whether to add the expensive statistics, too.
        """
        metrics = embedding_statistics(embeddings) | metrics
        self._dim = embeddings.shape[-1]
        self._products = None
        if spread:
            more, self._products = spread_statistics(embeddings)
            metrics |= more
        self._pending.append(metrics)

    def hold(self, *, watched: bool = False, beside: Mapping[str, Tensor] | None = None) -> None:
        """Let the device compute the report of the buffered steps, and copy it to the host.

        All ranks must call this after the same steps.

        Args:
            watched: whether the collapse alarm is fed with the last of these steps.
            beside: tensors of the last step that `deliver` returns; nothing may change them.
        """
        pending, self._pending = self._pending, []
        products, self._products = self._products, None
        if not pending:
            return
        names = list(dict.fromkeys(name for metrics in pending for name in metrics))
        rows = [
            torch.stack(
                [
                    to_device(metrics.get(name, self._missing), self.device).to(torch.float64)
                    for name in names
                ]
            )
            for metrics in pending
        ]
        if products is not None:
            # Those of rank 0, because a mean of different images' products has no meaning.
            products = mean_over_ranks(products * (rank() == 0), all_ranks()) * world_size()
        self._held.append(
            _Held(
                self.progress.step,
                [{n: i for i, n in enumerate(names) if n in metrics} for metrics in pending],
                HostCopy(mean_over_ranks(torch.stack(rows), all_ranks())),
                None if products is None else HostCopy(products),
                watched,
                {name: HostCopy(tensor) for name, tensor in (beside or {}).items()},
            )
        )

    def deliver(self, in_flight: int = 0) -> list[tuple[int, dict[str, Tensor]]]:
        """Report what is held, except that of the newest steps, and feed the collapse alarm.

        All ranks must call this after the same steps.

        Args:
            in_flight: number of the newest steps whose reports stay.

        Returns:
            The number of steps of each report with something `beside`, and this.
        """
        due = []
        while self._held and self._held[0].step + in_flight <= self.progress.step:
            due.append(self._held.popleft())
        if due:
            self._report(due)
        return [
            (held.step, {name: copy.read() for name, copy in held.beside.items()})
            for held in due
            if held.beside
        ]

    def report(self) -> None:
        """Report all buffered steps at once, which waits for the device."""
        self.hold()
        self.deliver()

    def _report(self, due: list[_Held]) -> None:
        """Report some parts, oldest first, as one: they arrive together, so that only all have a time."""
        tables = [held.table.read().tolist() for held in due]
        now = time.perf_counter()
        steps = sum(map(len, tables))
        speed = steps * self.length.batch_size / max(now - self._since, 1e-9)
        self._since = now
        values: list[dict[str, float]] = []
        watched = []
        for held, table in zip(due, tables, strict=True):
            values += [
                {name: row[i] for name, i in columns.items()} | {"images_per_second": speed}
                for row, columns in zip(table, held.metrics, strict=True)
            ]
            if held.products is not None:
                values[-1]["embedding_rank"] = rank_of_products(held.products.read())
            if held.watched:
                watched.append((values[-1] | {"embedding_dim": self._dim}, held.step))
        self._times = times = self.timer.report()
        use = {name: value for name, value in self.use.report().items() if math.isfinite(value)}
        values[-1] |= time_metrics(times) | use
        # One by one, so that the sums do not depend on when a run reports.
        for row in values:
            self.progress.add_step(row)
        first = due[-1].step - steps + 1
        self.reporter.metrics(
            [
                {"step": first + i, "time": time.time(), "values": row}
                for i, row in enumerate(values)
            ]
        )
        self._latest = values[-1]
        self._recent.add(times)
        self.report_progress()
        bound = self.watch.observe(times)
        if bound is not None:
            self.reporter.event("input_bound", *bound)
        for metrics, step in watched:
            self.watch_collapse(metrics, step)

    def report_times(self) -> None:
        """Report the last step's time shares again, including the time since then."""
        if self._latest is None:
            return
        self._report_values(time_metrics(self._times + self.timer.report()))

    def report_progress(self) -> None:
        """Report the position, with the newest metrics of a step and of an evaluation of the trained network."""
        if self._latest is None:
            return
        step, speed = self.progress.step, self._latest["images_per_second"]
        trained = [each for each in self.progress.evaluations if each["subject"] in TRAINED]
        metrics: Mapping[str, Any] = trained[-1]["metrics"] if trained else {}
        total = self.length.total_steps
        self.reporter.progress(
            {
                "step": step,
                "total_steps": total,
                "epoch": round(self.length.epoch_at(step), 3),
                "epochs": self.length.epochs,
                "loss": self._latest["loss"],
                "images_per_second": speed,
                "eta_seconds": (total - step) * self.length.batch_size / speed,
                "times": {
                    activity: round(share, 3)
                    for activity, share in self._recent.total().shares().items()
                },
                **{accuracy.field: metrics.get(accuracy.metric) for accuracy in ACCURACIES},
            }
        )

    def report_clusters(self, quality: dict[str, float]) -> None:
        """Report the quality of a new clustering, if any."""
        if quality:
            self._report_values({f"clusters_{name}": value for name, value in quality.items()})

    def _report_values(self, values: dict[str, float]) -> None:
        self.reporter.metrics([{"step": self.progress.step, "time": time.time(), "values": values}])

    def watch_collapse(self, metrics: dict[str, float], step: int) -> None:
        """Feed the collapse alarm after so many steps; report its alarms, and record one that must end the run.

        All ranks pass the same metrics, so they decide the same.
        """
        if self.on_collapse == "ignore":
            return
        alarms = self._alarm.observe(metrics, step / self.length.total_steps)
        self.progress.collapse = self._alarm.state_dict()
        for alarm in alarms:
            data = {"cause": alarm.cause, "figures": alarm.metrics}
            self.reporter.event("collapse", alarm.message, data)
        if alarms and self.on_collapse == "stop":
            self.progress.collapsed = alarms[0].message

    @property
    def collapsed(self) -> list[str]:
        """Causes of a collapse from which the run has not recovered."""
        return list(self._alarm.active)

    def restore_alarm(self) -> None:
        """Restore the collapse alarm from the progress of a checkpoint."""
        if self.progress.collapse:
            self._alarm.load_state_dict(self.progress.collapse)

    def reset_timer(self) -> None:
        """Exclude the time since the last report from the throughput (evaluation, checkpointing)."""
        self._since = time.perf_counter()


def time_metrics(times: Times) -> dict[str, float]:
    """Return the time share of each activity, by metric name."""
    return {f"time_{activity}": share for activity, share in times.shares().items()}


def embedding_statistics(embeddings: Tensor) -> dict[str, Tensor]:
    """Compute statistics of the norms of raw embeddings (V, B, h) and of the spread of their directions."""
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


def spread_statistics(embeddings: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
    """Compute pairwise distances of the directions of different images' embeddings.

    A regularizer that aligns distances may collapse these independently of the backbone.

    Args:
        embeddings: (V, B, h); the first view of the first n images of this rank is used, at most `SPREAD_IMAGES`.

    Returns:
        Statistics of the distances, and the products of the directions (n, n) for `rank_of_products`; nothing of a
        single image.
    """
    rows = embeddings[0, :SPREAD_IMAGES].detach().float()
    rows = F.normalize(rows.nan_to_num(), dim=1)  # a decomposition fails on NaN
    if len(rows) < 2:
        return {}, None
    distances = F.pdist(rows)
    statistics = {
        "embedding_distance": distances.mean(),
        "embedding_distance_std": distances.std(unbiased=False),
    }
    return statistics, rows.double() @ rows.double().t()


def rank_of_products(products: Tensor) -> float:
    """Compute the effective rank of directions from their products (n, n) float64, on a CPU.

    Singular values of 8,192 dimensions take fifty milliseconds, and a GPU's decomposition waits for all of its work. In
    float64 a root is exact to 1e-8. Rounded, so that ranks on different CPUs decide the same about a collapse.
    """
    values = torch.linalg.eigvalsh(products).clamp(min=0).sqrt()
    shares = (values / values.sum()).nan_to_num()  # all embeddings zero: one point, rank 1
    return float(f"{torch.special.entr(shares).sum().exp().item():.7g}")
