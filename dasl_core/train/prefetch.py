"""Prefetching of views: a GPU renders them on a side stream during the previous step."""

from collections.abc import Generator, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dasl_core.data.loader import Batch
from dasl_core.tensors import pinned, to_device
from dasl_core.train.timing import StepTimer
from dasl_core.train.views import CustomViewMaker, ViewMaker


@dataclass
class _Prepared:
    """Views of a batch, or the error of a user's function."""

    batch: Batch
    views: list[Tensor]
    error: Exception | None = None
    ready: torch.cuda.Event | None = None


class ViewPrefetcher:
    """Renders the views of each step, one step ahead where that hides their time.

    Random numbers are functions of the seed, the step and the view, so views do not depend on when they
    are rendered. A CPU does not prefetch, because the step needs the same cores.

    Args:
        ahead: whether to prepare the next step's views before a step; None: on a GPU.
    """

    def __init__(
        self,
        maker: ViewMaker | CustomViewMaker,
        device: torch.device,
        timer: StepTimer,
        *,
        ahead: bool | None = None,
    ) -> None:
        self.maker, self.device, self.timer = maker, device, timer
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._looks_ahead = self._stream is not None if ahead is None else ahead
        self._prepared: list[_Prepared] = []

    def pin(self, batch: Batch) -> Batch:
        """Move a batch for a GPU to pinned memory; called by reading threads."""
        return replace(batch, canvases=pinned(batch.canvases, self.device))

    def batches(self, batches: Iterable[Batch], first: int) -> Generator[Batch, None, None]:
        """Yield batches from the step `first` on, while the views of the next one are being rendered."""
        source, step = iter(batches), first
        try:
            while True:
                with self.timer.span("data_wait"):
                    batch = next(source, None)
                if batch is not None:
                    self.timer.add("decode", batch.seconds, batch.worked)
                    if not self._looks_ahead:
                        yield batch
                        continue
                    self._prepared.append(self._prepare(batch, step))
                    step += 1
                    if len(self._prepared) == 1:
                        continue
                elif not self._prepared:
                    return
                yield self._prepared[0].batch
        finally:
            self._prepared.clear()
            if isinstance(source, Generator):
                source.close()

    def views(self, batch: Batch, step: int) -> list[Tensor]:
        """Return the views (B, C, H, W) of a batch; render them unless they are prefetched.

        Args:
            step: step of the run.

        Raises:
            Exception: error of a user's function for this batch.
        """
        if not self._prepared or self._prepared[0].batch is not batch:
            return self._make(batch, step)
        prepared = self._prepared.pop(0)
        if prepared.error is not None:
            raise prepared.error
        if prepared.ready is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(prepared.ready)
            for view in prepared.views:
                view.record_stream(stream)  # its memory is reused only after the step
        return prepared.views

    def _prepare(self, batch: Batch, step: int) -> _Prepared:
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            try:
                prepared = _Prepared(batch, self._make(batch, step))
            except Exception as error:  # noqa: BLE001  # raised at its step
                return _Prepared(batch, [], error)
            if self._stream is not None:
                prepared.ready = self._stream.record_event()
        return prepared

    def _make(self, batch: Batch, step: int) -> list[Tensor]:
        with self.timer.span("copy"):
            canvases = to_device(batch.canvases, self.device)
        with self.timer.span("views"):
            return self.maker.make(replace(batch, canvases=canvases), step)
