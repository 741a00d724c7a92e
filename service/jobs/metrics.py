"""Metrics as columns over common steps, with a few bytes per value."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from pydantic_core import to_json

# Values per block of an answer.
_BLOCK = 10_000


@dataclass(frozen=True)
class _Series:
    steps: array[int]
    values: array[float]


@dataclass
class Columns:
    """Metric points as columns over common steps. Python lists would take ten times the memory."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    _series: dict[str, _Series] = field(default_factory=dict)

    @classmethod
    def from_points(cls, points: Iterable[Sequence[Any]]) -> Columns:
        """Arrange points in columns.

        Args:
            points: (name, step, time, value), sorted by name and step; the last of duplicates is used.
        """
        columns = cls()
        for name, rows in groupby(points, key=itemgetter(0)):
            steps, times, values = array("q"), array("d"), array("d")
            for _, step, time, value in rows:
                if steps and steps[-1] == step:
                    # If a step was repeated, the newest attempt has the latest time.
                    times[-1], values[-1] = max(times[-1], time), value
                else:
                    steps.append(step)
                    times.append(time)
                    values.append(value)
            columns._series[name] = _Series(steps, values)
            columns._add_steps(steps, times)
        return columns

    def as_json(self) -> Generator[bytes, None, None]:
        """Encode a `MetricColumns` as JSON, in blocks."""
        yield b'{"step":'
        yield from _encoded(self.steps)
        yield b',"time":'
        yield from _encoded(self.times)
        yield b',"values":{'
        for number, (name, series) in enumerate(self._series.items()):
            yield (b"," if number else b"") + to_json(name) + b":"
            yield from _encoded(self._aligned(series))
        yield b"}}"

    def _add_steps(self, steps: array[int], times: array[float]) -> None:
        if steps == self.steps:
            self.times = array("d", map(max, self.times, times))
            return
        both = heapq.merge(zip(self.steps, self.times, strict=True), zip(steps, times, strict=True))
        self.steps, self.times = array("q"), array("d")
        for step, time in both:
            if self.steps and self.steps[-1] == step:
                self.times[-1] = max(self.times[-1], time)
            else:
                self.steps.append(step)
                self.times.append(time)

    def _aligned(self, series: _Series) -> Iterator[float | None]:
        """Yield the value of a series at each common step; `None` where it has none."""
        if len(series.steps) == len(self.steps):
            yield from series.values
            return
        index, count = 0, len(series.steps)
        for step in self.steps:
            if index < count and series.steps[index] == step:
                yield series.values[index]
                index += 1
            else:
                yield None


def _encoded(values: Iterable[float | None]) -> Iterator[bytes]:
    remaining = iter(values)
    before = b"["
    while block := list(islice(remaining, _BLOCK)):
        yield before + to_json(block)[1:-1]
        before = b","
    yield b"[]" if before == b"[" else b"]"
