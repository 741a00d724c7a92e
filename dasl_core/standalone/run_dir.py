"""Output folder of a standalone run, for one run at a time and without partial files.

A checkpoint is a folder with a manifest of its files' sha256, which is written last. It is renamed only when
it is completely on the disk.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from dasl_core import manifest
from dasl_core.atomic import sync, write_atomically
from dasl_core.manifest import MANIFEST, find_damage
from dasl_core.outputs import check_folder

CHECKPOINTS, METRICS, SPEC = "checkpoints", "metrics.jsonl", "spec.json"
ATTEMPT = "attempt.json"
EPOCHS = "metrics.json"  # written by `dasl_core.export`
_SCRATCH = ".dasl-scratch"
_MARK = ".dasl-run"  # also the lock
# Error numbers of file systems without locks, on which two runs can share a folder.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
_NUMBERED = "step-" + 9 * "[0-9]"


class RunDirectory:
    """The output folder, locked for this process while the context manager is open.

    Attributes:
        scratch: an empty folder on the same disk for partial files.
        damaged: why `start` skipped newer checkpoints.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """Create and lock the folder, and remove partial files of a killed run.

        Args:
            force: also use a folder that has files and is not of a run.

        Raises:
            ValueError: another process is writing to it, or it has files of something else.
            OSError: it cannot be written to.
        """
        # Hidden files are lost when checkpoints are copied, and a link leads to another disk.
        checkpoints = path / CHECKPOINTS
        is_run = checkpoints.is_symlink() or any(checkpoints.glob(_NUMBERED))
        check_folder(path, _MARK, force=force or is_run)
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for created in missing:
            sync(created.parent)
        self.path = path
        self._lock = os.open(path / _MARK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ValueError(f"--output: another run is writing to {path}") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(self._lock)
                raise
        self.scratch = path / _SCRATCH
        for folder in (self.scratch, *(path / CHECKPOINTS).glob(f".{_NUMBERED}.partial")):
            shutil.rmtree(folder, ignore_errors=True)
        for name in (SPEC, ATTEMPT, METRICS):
            for partial in path.glob(f".{name}.*.partial"):
                partial.unlink()
        for aside in (path / CHECKPOINTS).glob(f".{_NUMBERED}.replaced"):
            _put_back(aside)
        self.scratch.mkdir()
        self.damaged: list[str] = []
        self._unwritten: list[str] = []
        self._kept_until: int | None = None
        # A background thread writes checkpoints, and the metrics before them.
        self._metrics_lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.close(self._lock)

    def start(self, resume: bool) -> Path | None:
        """Return the newest intact checkpoint to resume from; None to start at the first step.

        A run that was killed before its first checkpoint starts at the first step.

        Raises:
            ValueError: the folder holds a run and `resume` is False, or none of its checkpoints is
                intact, or they are on an unmounted disk.
            OSError: a file exists and cannot be read.
        """
        checkpoints = self.path / CHECKPOINTS
        if checkpoints.is_symlink() and not checkpoints.exists():
            raise ValueError(
                f"{checkpoints} is a link to {checkpoints.readlink()}, which does not exist"
            )
        existing = sorted((self.path / CHECKPOINTS).glob(_NUMBERED), reverse=True)
        if not resume:
            used = [CHECKPOINTS] if existing else []
            used += [METRICS] if (self.path / METRICS).exists() else []
            if used:
                raise ValueError(
                    f"--output: {self.path} contains {used[0]} of a run. Pass --resume to continue "
                    "it, or choose another folder."
                )
            return None
        for checkpoint in existing:
            damage = find_damage(checkpoint)
            if damage is None:
                self._kept_until = checkpoint_step(checkpoint)
                return checkpoint
            self.damaged.append(damage)
        if existing:
            raise ValueError(f"--resume: no checkpoint is intact: {'; '.join(self.damaged)}")
        self._kept_until = 0
        return None

    def begin_attempt(self, resume: bool) -> tuple[str, int]:
        """Count an attempt; return the run's id, which does not change on resume, and the attempt's number."""
        run, attempt = uuid.uuid4().hex, 1
        file = self.path / ATTEMPT
        if resume and file.exists():
            # Damaged, so trackers show another run.
            with suppress(OSError, ValueError, KeyError, TypeError):
                stored = json.loads(file.read_text(encoding="utf-8"))
                run, attempt = str(stored["run"]), int(stored["attempt"]) + 1
        with suppress(OSError):  # on a full disk, trackers show the next attempt as another run
            write_atomically(file, json.dumps({"run": run, "attempt": attempt}).encode())
        return run, attempt

    def write_spec(self, text: str) -> None:
        """Replace `spec.json`."""
        write_atomically(self.path / SPEC, text.encode())

    def add_metrics(self, points: list[dict[str, Any]]) -> None:
        """Append metric points as lines, without the values that JSON cannot represent.

        The first call of a resumed run drops the lines of repeated steps. If all steps are repeated, the file is
        renamed to `metrics.jsonl.old`, `.old.2`, ... instead.

        Raises:
            OSError: they cannot be written; the next call retries them.
        """
        with self._metrics_lock:
            self._unwritten += [_line(point) for point in points]
            file = self.path / METRICS
            if self._kept_until is not None:
                if self._kept_until == 0 and file.exists():
                    file.rename(_free_name(file.with_name(f"{file.name}.old")))
                elif file.exists():
                    # A killed process may leave a partial line.
                    lines = file.read_text(encoding="utf-8", errors="replace").splitlines(
                        keepends=True
                    )
                    whole = [line for line in lines if line.endswith("\n")]
                    retained = "".join(x for x in whole if _parse_step(x) <= self._kept_until)
                    write_atomically(file, retained.encode())
                self._kept_until = None
            text = "".join(self._unwritten).encode()
            with open(file, "ab", buffering=0) as sink:
                end = sink.tell()
                try:
                    # Unbuffered, because on a full disk a part is written and the next call raises.
                    while text:
                        text = text[sink.write(text) :]
                except OSError:
                    sink.truncate(end)
                    raise
            self._unwritten.clear()

    def add_checkpoint(self, folder: Path, step: int) -> Path:
        """Move the files of `folder`, inside `scratch`, to a checkpoint; return its folder.

        Raises:
            OSError: the checkpoint may not be durable; the previous one remains, since the write is atomic.
        """
        with self._metrics_lock:  # the metrics reach the disk before the checkpoint
            if self._unwritten:
                self.add_metrics([])
            if (self.path / METRICS).exists():
                sync(self.path / METRICS)
        target = self.path / CHECKPOINTS / f"step-{step:09d}"
        partial = target.with_name(f".{target.name}.partial")
        aside = target.with_name(f".{target.name}.replaced")
        partial.mkdir(parents=True)
        sync(self.path)  # the entries of `checkpoints` and of the metrics may be new
        try:
            files = {}
            for file in sorted(folder.iterdir()):
                # Copies if `checkpoints` is a link to another disk.
                shutil.move(file, partial / file.name)
                with open(partial / file.name, "rb") as written:
                    os.fsync(written.fileno())
                    digest = hashlib.file_digest(written, "sha256").hexdigest()
                    files[file.name] = (written.tell(), digest)
            write_atomically(partial / MANIFEST, manifest.encode(files, {"step": step}))
            if target.exists():  # damaged, or written before the final evaluation
                target.rename(aside)
            partial.rename(target)
            sync(target.parent)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            _put_back(aside)
            raise
        _put_back(aside)
        return target

    def checkpoint_epochs(self, *, before: int) -> list[tuple[Path, float]]:
        """Return the checkpoints before a step with their epochs, oldest first, if their epochs are readable."""
        epochs = []
        for folder in sorted((self.path / CHECKPOINTS).glob(_NUMBERED)):
            try:
                about = json.loads((folder / EPOCHS).read_text(encoding="utf-8"))
                epoch = float(about["epoch"])
            except (OSError, ValueError, KeyError, TypeError):  # damaged
                continue
            if checkpoint_step(folder) < before:
                epochs.append((folder, epoch))
        return epochs


def checkpoint_step(folder: Path) -> int:
    """Return the step of a checkpoint from the name of its folder."""
    return int(folder.name.removeprefix("step-"))


@contextmanager
def writing_to(output: Path) -> Iterator[None]:
    """Context manager that converts an OSError to a ValueError that names the output folder and the remedy."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"--output: {output} cannot be written: {error.strerror or error}. Choose a folder that can be written "
            "and has space."
        ) from error


def _put_back(aside: Path) -> None:
    """Restore the name of a replaced checkpoint if the new one is incomplete."""
    target = aside.with_name(aside.name.removeprefix(".").removesuffix(".replaced"))
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
    elif aside.exists():
        aside.rename(target)


def _free_name(file: Path) -> Path:
    """Return the first of `name`, `name.2`, `name.3`, ... that does not exist."""
    free, number = file, 1
    while free.exists():
        number += 1
        free = file.with_name(f"{file.name}.{number}")
    return free


def _line(point: dict[str, Any]) -> str:
    finite = {name: value for name, value in point["values"].items() if math.isfinite(value)}
    return json.dumps(point | {"values": finite}) + "\n"


def _parse_step(line: str) -> float:
    """Return the step of a line of metrics; infinity for a damaged line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf
