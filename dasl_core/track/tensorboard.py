"""TensorBoard: an event file for each attempt."""

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

    TensorBoard reads all files of a folder as one run, in order of their names. At the start of a later file it
    drops repeated steps. The library's `SummaryWriter` is not used, because on a full disk its thread ends and
    leaves a partial record, after which TensorBoard reads no further.
    """

    name, key = "TensorBoard", "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._path = run.folder / f"{_PREFIX}{int(time.time()):010d}.{run.attempt}"
        self._published = 0  # size of the file

    def start(self) -> str:
        """Create the file; return its name, or its folder if users have access to it."""
        try:
            # Imported late, in this tracker's thread, because it takes most of a second.
            import tensorboardX.proto.event_pb2 as events
        except ImportError as error:
            raise TrackerUnusable(
                f"{error}. Install tensorboardX where ranks run, or set track.tensorboard: false."
            ) from error
        # The start of a session makes TensorBoard drop an earlier session's steps from there on.
        session = events.SessionLog(status=events.SessionLog.START)
        resumed = self._run.resume_step
        now, step = time.time(), 0 if resumed is None else resumed + 1
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
        """Publish the file if it has grown."""
        if self._run.publish is None:
            return
        size = self._path.stat().st_size
        if size > self._published:
            self._run.publish(self._path)
            self._published = size

    def finish(self, ending: Ending) -> None:
        """Publish the whole file."""
        if ending != "superseded":
            self.publish()

    def close(self) -> None:
        """Do nothing, since the file is open only during writes."""

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
    """Frame a record in the TFRecord format."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(content))
    return (
        length
        + struct.pack("<I", masked_crc32c(length))
        + content
        + struct.pack("<I", masked_crc32c(content))
    )
