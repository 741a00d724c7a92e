"""The folder that `dasl train` writes: one run at a time, and nothing in it that is half a file.

A checkpoint is a folder with a list of its files' sha256, which is written last; it gets its name only
when all of it is on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dasl_core.manifest import MANIFEST, damage_of

CHECKPOINTS, METRICS, SPEC = "checkpoints", "metrics.jsonl", "spec.json"
_LOCK, _SCRATCH = ".lock", ".scratch"
# What file systems say that have no locks: there, that no two runs share a folder is left to people.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
_NUMBERED = "step-" + 9 * "[0-9]"


class OutputFolder:
    """Use as a context manager: it is this process's until it is left.

    Attributes:
        scratch: an empty folder on the same disk, for what is being written.
        left_out: of `start`: what is wrong with the checkpoints newer than the one it gave.
    """

    def __init__(self, path: Path) -> None:
        """Make the folder if need be, take it, and clear away what a killed run left half written.

        Raises:
            ValueError: another process is writing to it.
            OSError: it cannot be written to.
        """
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for made in missing:
            _sync(made.parent)
        self.path = path
        self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ValueError(f"another run is writing to --output {path}") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(self._lock)
                raise
        self.scratch = path / _SCRATCH
        for left in (self.scratch, *(path / CHECKPOINTS).glob(f".{_NUMBERED}.partial")):
            shutil.rmtree(left, ignore_errors=True)
        for aside in (path / CHECKPOINTS).glob(f".{_NUMBERED}.replaced"):
            _put_back(aside)
        self.scratch.mkdir()
        self.left_out: list[str] = []
        self._unwritten: list[str] = []
        self._kept_until: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.close(self._lock)

    def start(self, resume: bool) -> Path | None:
        """The checkpoint to go on from, the newest one that is whole; None: from the beginning.

        A run that died before its first checkpoint has left nothing, so it begins again.

        Raises:
            ValueError: the folder holds a run and is not to be resumed, or none of its checkpoints
                is whole, or they lie on a disk that is not there.
            OSError: a file is there and cannot be read. An older checkpoint would not be better.
        """
        checkpoints = self.path / CHECKPOINTS
        if checkpoints.is_symlink() and not checkpoints.exists():
            raise ValueError(
                f"{checkpoints} is a link to {checkpoints.readlink()}, which is not there"
            )
        found = sorted((self.path / CHECKPOINTS).glob(_NUMBERED), reverse=True)
        if not resume:
            used = [CHECKPOINTS] if found else []
            used += [METRICS] if (self.path / METRICS).exists() else []
            if used:
                raise ValueError(
                    f"{self.path} holds {used[0]} of a run: give --resume to go on with it, or "
                    "another --output"
                )
            return None
        for checkpoint in found:
            damage = damage_of(checkpoint)
            if damage is None:
                self._kept_until = int(checkpoint.name.removeprefix("step-"))
                return checkpoint
            self.left_out.append(damage)
        if found:
            raise ValueError(f"--resume: no checkpoint is whole: {'; '.join(self.left_out)}")
        self._kept_until = 0
        return None

    def write_spec(self, text: str) -> None:
        """Replace `spec.json`."""
        _replace(self.path / SPEC, text)

    def add_figures(self, points: list[dict[str, Any]]) -> None:
        """Append lines to the figures, without values that JSON cannot say. The first time, drop those of
        steps that come again; where all do, keep them beside, as `metrics.jsonl.old`, or with a number
        where there is such a file.

        Raises:
            OSError: they cannot be written, and are with the next ones.
        """
        self._unwritten += [_line(point) for point in points]
        file = self.path / METRICS
        if self._kept_until is not None:
            if self._kept_until == 0 and file.exists():
                file.rename(_free_name(file.with_name(f"{file.name}.old")))
            elif file.exists():
                # A process that is killed leaves half a line.
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
                whole = [line for line in lines if line.endswith("\n")]
                _replace(file, "".join(x for x in whole if _step_of(x) <= self._kept_until))
            self._kept_until = None
        text = "".join(self._unwritten).encode()
        with open(file, "ab", buffering=0) as sink:
            end = sink.tell()
            try:
                # Unbuffered: where room ends, a part is written, and the next call says why.
                while text:
                    text = text[sink.write(text) :]
            except OSError:
                sink.truncate(end)
                raise
        self._unwritten.clear()

    def add_checkpoint(self, folder: Path, step: int) -> Path:
        """Move the files of `folder`, which lies in `scratch`, to a checkpoint; returns where.

        Raises:
            OSError: it is not sure to be on the disk. There is all of it or nothing, and then what was
                there before.
        """
        self._sync_figures()
        target = self.path / CHECKPOINTS / f"step-{step:09d}"
        partial = target.with_name(f".{target.name}.partial")
        aside = target.with_name(f".{target.name}.replaced")
        partial.mkdir(parents=True)
        _sync(self.path)  # which may have the names of `checkpoints` and of the figures only now
        try:
            digests = {}
            for file in sorted(folder.iterdir()):
                # A copy, should `checkpoints` be a link to another disk.
                shutil.move(file, partial / file.name)
                with open(partial / file.name, "rb") as written:
                    os.fsync(written.fileno())
                    digests[file.name] = hashlib.file_digest(written, "sha256").hexdigest()
            _replace(partial / MANIFEST, json.dumps({"sha256": digests}, indent=2) + "\n")
            if target.exists():  # damaged, or written before the final evaluation
                target.rename(aside)
            partial.rename(target)
            _sync(target.parent)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            _put_back(aside)
            raise
        _put_back(aside)
        return target

    def _sync_figures(self) -> None:
        """A checkpoint's steps have their figures on the disk before it is."""
        if self._unwritten:
            self.add_figures([])
        if (self.path / METRICS).exists():
            _sync(self.path / METRICS)


def _put_back(aside: Path) -> None:
    """Give a checkpoint its name again, unless another has taken its place."""
    target = aside.with_name(aside.name.removeprefix(".").removesuffix(".replaced"))
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
    elif aside.exists():
        aside.rename(target)


def _free_name(file: Path) -> Path:
    """The name, or the first of `name.2`, `name.3`, ... that nothing has."""
    free, number = file, 1
    while free.exists():
        number += 1
        free = file.with_name(f"{file.name}.{number}")
    return free


def _line(point: dict[str, Any]) -> str:
    finite = {name: value for name, value in point["values"].items() if math.isfinite(value)}
    return json.dumps(point | {"values": finite}) + "\n"


def _replace(file: Path, text: str) -> None:
    """Write a file so that there is the old one or the new one, whatever dies."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        with open(partial, "w", encoding="utf-8") as sink:
            sink.write(text)
            sink.flush()
            os.fsync(sink.fileno())
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    _sync(file.parent)


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step_of(line: str) -> float:
    """The step of a line of the figures; of a damaged line, one after all others."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf
