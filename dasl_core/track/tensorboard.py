"""TensorBoard: a file of events for each attempt."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dasl_core.track.tracker import Ending, Point, TrackedRun, TrackerUnusable

if TYPE_CHECKING:
    from tensorboardX.proto.event_pb2 import Event

_PREFIX = "events.out.tfevents."


class TensorBoard:
    """Writes the scalars of an attempt to an event file, which is published with each checkpoint.

    TensorBoard reads all files of a folder as one run, in the order of their names. At the beginning of a
    later one it drops the steps that run again. The library's `SummaryWriter` is not used: on a full disk its
    thread ends, and leaves half a record after which TensorBoard reads no more of the file.
    """

    name, key = "TensorBoard", "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._path = run.folder / f"{_PREFIX}{int(time.time()):010d}.{run.attempt}"
        self._published = 0  # size of the file

    def start(self) -> str:
        """Begin the file; returns its name, or its folder where people have access to it."""
        try:
            # Imported late: most of a second, in the thread of this tracker.
            import tensorboardX.proto.event_pb2 as events
        except ImportError as error:
            raise TrackerUnusable(
                f"{error}. Install tensorboardX where ranks run, or set track.tensorboard: false."
            ) from error
        # The beginning of a session makes TensorBoard drop steps from there on that an earlier one has.
        session = events.SessionLog(status=events.SessionLog.START)
        now, step = time.time(), self._run.first_step
        first = [
            events.Event(wall_time=now, file_version="brain.Event:2"),
            events.Event(wall_time=now, step=step, session_log=session),
        ]
        self._append(first)
        return self._path.name if self._run.publish else f"tensorboard --logdir {self._path.parent}"

    def log(self, points: Sequence[Point]) -> None:
        """Append an event for each point."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        self._append(
            Event(
                wall_time=point.time,
                step=point.step,
                summary=Summary(
                    value=[
                        Summary.Value(tag=name, simple_value=value)
                        for name, value in point.values.items()
                    ]
                ),
            )
            for point in points
        )

    def publish(self) -> None:
        """Publish the file, if it has grown."""
        if self._run.publish is None:
            return
        size = self._path.stat().st_size
        if size > self._published:
            self._run.publish(self._path)
            self._published = size

    def finish(self, ending: Ending) -> None:
        """Publish all of the file."""
        if ending != "superseded":
            self.publish()

    def close(self) -> None:
        """Do nothing: the file is open only while it is written."""

    def _append(self, events: Iterable[Event]) -> None:
        """Append all events or none."""
        content = b"".join(_record(event.SerializeToString()) for event in events)
        with open(self._path, "ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while content:  # on a full disk a part is written, and the next call raises
                    content = content[file.write(content) :]
            except OSError:
                file.truncate(end)
                raise


def _record(content: bytes) -> bytes:
    """Frame a record as TFRecord does."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(content))
    return (
        length
        + struct.pack("<I", masked_crc32c(length))
        + content
        + struct.pack("<I", masked_crc32c(content))
    )
