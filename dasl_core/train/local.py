"""`dasl train`: a run without a service, in this process or in each process of torchrun."""

import gc
import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import ValidationError
from safetensors import SafetensorError

from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.distributed import rank
from dasl_core.spec import JobSpec, SpecError, apply_overrides, field_problems, load_spec, resolve
from dasl_core.train.build import RunFiles, pretrain
from dasl_core.train.output import METRICS, OutputFolder
from dasl_core.train.reporter import Desired, NullReporter, Phase, Subject, progress_line


class ConsoleReporter:
    """Prints a line for what a person watches, and keeps everything in the output folder."""

    def __init__(self, output: OutputFolder) -> None:
        self.output = output
        self.shown_step = -1
        self.saved = False
        self.interrupted = False
        self._told_of_figures = False

    def metrics(self, points: list[dict[str, Any]]) -> None:
        try:
            self.output.add_figures(points)
        except OSError as error:
            if not self._told_of_figures:
                _say(f"{METRICS} cannot be written, and is later: {error}")
            self._told_of_figures = True
        else:
            self._told_of_figures = False

    def progress(self, progress: dict[str, Any]) -> None:
        if progress["step"] == self.shown_step:
            return  # an evaluation has updated it, and has a line of its own
        self.shown_step = progress["step"]
        _say(progress_line(progress))

    def phase(self, name: Phase, message: str) -> None:
        _say(message)

    def keepalive(self) -> None:
        """A person sees the process."""

    def evaluation(
        self, step: int, epoch: float, subject: Subject, metrics: dict[str, float]
    ) -> None:
        figures = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        _say(f"evaluation of {subject} at epoch {epoch:g}: {figures}")

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        _say(f"checkpoint {self.output.add_checkpoint(folder, step)}")
        self.saved = True

    def artifact(self, file: Path) -> None:
        file.rename(self.output.path / file.name)

    def event(self, type: str, message: str, data: dict[str, Any]) -> None:
        _say(f"{type}: {message}")

    def desired(self) -> Desired:
        return "cancel" if self.interrupted else "run"


def main(
    spec_path: Path, data: Path | None, output: Path, overrides: list[str], *, resume: bool = False
) -> int:
    """Train as the spec file says; returns the exit code.

    Args:
        data: folder of images; None takes the spec's `dataset` as the folder.
        output: where checkpoints, metrics and pictures go.
        resume: go on from the newest checkpoint in `output`, from the beginning where there is none.
    """
    try:
        settings = apply_overrides(load_spec(spec_path), overrides)
        if data is None:
            if not isinstance(settings.get("dataset"), str):
                raise ValueError(
                    "give the folder of images: as `dataset` in the spec, or --data DIR"
                )
            data = Path(settings["dataset"])
            if not data.is_dir():
                raise ValueError(
                    f"there is no folder {data}, as which `dataset` in {spec_path} is taken; "
                    "give the folder of images with --data DIR"
                )
            settings["dataset"] = data.resolve().name
        settings.setdefault("dataset", data.resolve().name)
        settings.pop("resources", None)  # this machine's, and the launcher's
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
    except (ValueError, OSError, SafetensorError) as error:
        return _fail(str(error))
    finally:
        _leave_ranks()


def _train(spec: JobSpec, data: Path, output: Path, resume: bool, device: torch.device) -> int:
    if spec.evaluate.dataset is not None:
        raise ValueError("evaluate.dataset names a registered data set, which needs the service")
    if output.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--output {output} lies among the images of {data}: give another one")
    with ExitStack() as stack:
        folder, start = _take(output, resume, stack)
        reporter = ConsoleReporter(folder) if folder is not None else None
        index = ingest_folder(data)
        spec = resolve(spec, index.facts())
        if folder is not None:
            if start is None:  # else the one there is holds, or the run is refused
                folder.write_spec(spec.model_dump_json(indent=2))
            for skipped in index.skipped:
                _say(f"skipped {skipped.path}: {skipped.reason}", "stderr")
        stack.enter_context(_ends_when_asked(reporter))
        scratch = output if folder is None else folder.scratch
        outcome = pretrain(
            spec,
            index,
            reporter or NullReporter(),
            RunFiles(cache=_cache_folder(index), scratch=scratch, resume=start),
            device=device,
            threads=spec.resources.cpus_per_worker,
        )
    if reporter is not None:
        if outcome == "cancelled":
            _say("interrupted: go on with --resume", "stderr")
        elif start is not None and not reporter.saved:
            _say(f"nothing was left to do: {start} is the end of the run")
    return 0 if outcome == "succeeded" else 130


def _take(output: Path, resume: bool, stack: ExitStack) -> tuple[OutputFolder | None, Path | None]:
    """Rank 0's hold on the output folder, until the stack ends, and for all ranks the checkpoint to
    go on from.

    Raises:
        ValueError: on every rank, why it cannot be had.
    """
    folder, start, problem = None, None, None
    if rank() == 0:
        try:
            folder = stack.enter_context(OutputFolder(output))
            start = folder.start(resume)
        except (ValueError, OSError) as error:
            problem = str(error)
        else:
            for damage in folder.left_out:
                _say(f"left out: {damage}", "stderr")
            if resume and start is None:
                _say(f"no checkpoint in {output}: begins with the first step", "stderr")
    if dist.is_initialized():
        shared: list[Any] = [start, problem]
        dist.broadcast_object_list(shared)
        start, problem = shared
    if problem is not None:
        raise ValueError(problem)
    return folder, start


@contextmanager
def _ends_when_asked(reporter: ConsoleReporter | None) -> Iterator[None]:
    """Ctrl-C, a supervisor's SIGTERM and a terminal that is closed end the run after its current step,
    with a checkpoint; a second one at once."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        if reporter is not None:
            reporter.interrupted = True
            # Not by `print`, which may be what was interrupted, and then refuses to begin again.
            with suppress(OSError):  # nobody is there to read it
                os.write(2, b"ends after this step; Ctrl-C again ends at once\n")

    # What is ignored stays so: nohup does it to SIGHUP.
    before: dict[int, Any] = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if (handler := signal.getsignal(number)) != signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _leave_ranks() -> None:
    if not dist.is_initialized():
        return
    dist.destroy_process_group()
    # The cycles of a run hold its groups, whose threads end with them. One that still drops a tensor
    # while the interpreter ends would abort the process, and torchrun the other ranks with it.
    gc.collect()


def _cache_folder(index: DatasetIndex) -> Path:
    base = os.environ.get("DASL_CACHE_DIR") or os.path.expanduser("~/.cache/dasl")
    # A folder has no id; its files' sizes and times tell whether the images are still the same.
    state = hashlib.blake2b(digest_size=16)
    for path in index.paths:
        stat = (index.root / path).stat()
        state.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return Path(base) / "local" / state.hexdigest()


def _say(line: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
    """Print a line. A terminal or a reader that is gone, and a log on a full disk, end no run of days.

    Names of files come from elsewhere, and could else steer the terminal or forge lines.
    """
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    try:
        print(line, file=getattr(sys, stream), flush=True)
    except OSError:
        # What is still in the buffer would fail again at exit.
        setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _fail(message: str) -> int:
    _tell(f"Error: {message}")
    return 1


def _tell(message: str) -> None:
    """Once for all of torchrun's ranks, which may not have met yet."""
    if os.environ.get("RANK", "0") == "0":
        for line in message.splitlines():
            _say(line, "stderr")
