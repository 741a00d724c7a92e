"""`dasl train`: a run without a service, in this process or in each process of torchrun."""

import hashlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError

from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.distributed import rank
from dasl_core.spec import JobSpec, SpecError, apply_overrides, field_problems, load_spec, resolve
from dasl_core.train.checkpoint import load_state
from dasl_core.train.engine import RunFiles, pretrain
from dasl_core.train.reporting import Desired, Subject

CHECKPOINTS, METRICS, SPEC = "checkpoints", "metrics.jsonl", "spec.json"


class ConsoleReporter:
    """Prints a line for what a person watches, and keeps everything in the output folder."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.shown_step = -1
        self.began_after: int | None = None  # the step of the checkpoint that it goes on from
        self.interrupted = False
        output.mkdir(parents=True, exist_ok=True)

    def metrics(self, points: list[dict[str, Any]]) -> None:
        if self.began_after is not None:
            self._forget_after(self.began_after)
            self.began_after = None
        with open(self.output / METRICS, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(point) + "\n" for point in points)

    def progress(self, progress: dict[str, Any]) -> None:
        if progress["step"] == self.shown_step:
            return  # an evaluation has updated it, and has a line of its own
        self.shown_step = progress["step"]
        print(
            f"epoch {progress['epoch']:.2f}/{progress['epochs']}  step {progress['step']}/"
            f"{progress['total_steps']}  loss {progress['loss']:.4f}  "
            f"{progress['images_per_second']:.0f} images/s  {progress['eta_seconds']:.0f} s left",
            flush=True,
        )

    def at_work(self) -> None:
        """A person sees the process."""

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        figures = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(f"evaluation of {subject} at epoch {epoch:g}: {figures}", flush=True)

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        target = self.output / CHECKPOINTS / f"step-{step:09d}"
        if target.exists():  # a resumed run passes a step again
            shutil.rmtree(target)
        target.parent.mkdir(exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(folder, partial)
        partial.rename(target)
        print(f"checkpoint {target}", flush=True)

    def artifact(self, file: Path) -> None:
        shutil.copy(file, self.output / file.name)

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        print(f"{type}: {message}", flush=True)

    def desired(self) -> Desired:
        return "cancel" if self.interrupted else "run"

    def _forget_after(self, step: int) -> None:
        """Drop the figures of later steps: they come again."""
        file = self.output / METRICS
        if file.exists():
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            # A process that is killed leaves half a line.
            whole = [line for line in lines if line.endswith("\n")]
            kept = "".join(line for line in whole if _step_of(line) <= step)
            partial = file.with_suffix(".partial")
            partial.write_text(kept, encoding="utf-8")
            partial.replace(file)


def main(
    spec_path: Path, data: Path | None, output: Path, overrides: list[str], *, resume: bool = False
) -> int:
    """Train as the spec file says; returns the exit code.

    Args:
        data: folder of images; None takes the spec's `dataset` as the folder.
        output: where checkpoints, metrics and pictures go.
        resume: go on from the newest checkpoint in `output`.
    """
    try:
        settings = apply_overrides(load_spec(spec_path), overrides)
        if data is None:
            if not isinstance(settings.get("dataset"), str):
                raise ValueError(
                    "give the folder of images: as `dataset` in the spec, or --data DIR"
                )
            data = Path(settings["dataset"])
            settings["dataset"] = data.resolve().name
        settings.setdefault("dataset", data.resolve().name)
        spec = _match_ranks(JobSpec.model_validate(settings))
    except ValidationError as error:
        return _fail("\n".join(map(str, field_problems(error, JobSpec))))
    except ValueError as error:
        return _fail(str(error))
    device = _join_ranks(spec)
    try:
        return _train(spec, data, output, resume, device)
    except SpecError as error:
        return _fail("\n".join(map(str, error.problems)))
    except ValueError as error:
        return _fail(str(error))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _train(spec: JobSpec, data: Path, output: Path, resume: bool, device: torch.device) -> int:
    if spec.evaluate.dataset is not None:
        raise ValueError("evaluate.dataset names a registered data set, which needs the service")
    if output.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--output {output} lies among the images of {data}: give another one")
    used = [name for name in (CHECKPOINTS, METRICS, SPEC) if (output / name).exists()]
    if used and not resume:
        how = "give --resume to go on with it, or " if CHECKPOINTS in used else "give "
        raise ValueError(f"{output} holds {used[0]} of a run: {how}another --output")
    start = _newest_checkpoint(output) if resume else None
    if dist.is_initialized():
        dist.barrier()  # every rank has looked at the folder before one writes to it
    # A place where nothing can be written is told of before all images are read.
    reporter = ConsoleReporter(output) if rank() == 0 else None
    index = ingest_folder(data)
    spec = resolve(spec, index.facts())
    if reporter is not None:
        if start is None:
            (output / SPEC).write_text(spec.model_dump_json(indent=2), encoding="utf-8")
        else:
            reporter.began_after = int(start.name.removeprefix("step-"))
        for skipped in index.skipped:
            print(f"skipped {skipped.path}: {skipped.reason}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="dasl-") as scratch, _ends_on_ctrl_c(reporter):
        files = RunFiles(cache=_cache_folder(index), scratch=Path(scratch), resume=start)
        outcome = pretrain(
            spec,
            index,
            reporter,
            files,
            device=device,
            threads=spec.resources.cpus_per_worker,
        )
    if reporter is not None:
        if outcome == "cancelled":
            print("interrupted: go on with --resume", file=sys.stderr)
        elif start is not None and reporter.shown_step < 0:
            print(f"nothing was left to do: {start} is the end of the run")
    return 0 if outcome == "succeeded" else 130


@contextmanager
def _ends_on_ctrl_c(reporter: ConsoleReporter | None) -> Iterator[None]:
    """Ctrl-C ends the run after its current step, with a checkpoint; a second one at once."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before)
        if reporter is not None:
            reporter.interrupted = True
            print("ends after this step; Ctrl-C again ends at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _match_ranks(spec: JobSpec) -> JobSpec:
    """Under torchrun the launcher says how many ranks there are; alone there is one, on a GPU if
    there is one, with all of this machine's cores."""
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    resources = spec.resources.model_copy(
        update={
            "workers": workers,
            "gpus_per_worker": int(torch.cuda.is_available()),
            "cpus_per_worker": max(1, (os.cpu_count() or 1) // local),
        }
    )
    # Validated again: the batch must be divisible by the real number of ranks.
    changed = spec.model_copy(update={"resources": resources})
    return JobSpec.model_validate(changed.model_dump(exclude_unset=True))


def _join_ranks(spec: JobSpec) -> torch.device:
    device = torch.device("cpu")
    if spec.resources.gpus_per_worker:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if spec.resources.workers > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def _cache_folder(index: DatasetIndex) -> Path:
    base = os.environ.get("DASL_CACHE_DIR") or os.path.expanduser("~/.cache/dasl")
    # A folder has no id; its files' sizes and times tell whether the images are still the same.
    state = hashlib.blake2b(digest_size=16)
    for path in index.paths:
        stat = (index.root / path).stat()
        state.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return Path(base) / "local" / state.hexdigest()


def _newest_checkpoint(output: Path) -> Path:
    """The newest one that can be read."""
    found = sorted((output / CHECKPOINTS).glob("step-" + 9 * "[0-9]"), reverse=True)
    for folder in found:
        try:
            load_state(folder)
        except ValueError as error:
            _tell(f"left out: {error}")
        else:
            return folder
    which = "checkpoint that can be read" if found else "checkpoint"
    raise ValueError(f"--resume: there is no {which} in {output / CHECKPOINTS}")


def _step_of(line: str) -> float:
    """The step of a line of the figures; of a damaged line, one after all others."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf


def _fail(message: str) -> int:
    _tell(f"Error: {message}")
    return 1


def _tell(message: str) -> None:
    """Once for all of torchrun's ranks, which may not have met yet."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr)
