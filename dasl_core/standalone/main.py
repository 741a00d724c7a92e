"""Training without a service: `python -m dasl_core.standalone`, alone or under torchrun."""

import argparse
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import list_folder
from dasl_core.spec import JobSpec, SpecError, apply_overrides, field_problems, load_spec, resolve
from dasl_core.standalone.console import ConsoleReporter, fail, say
from dasl_core.standalone.kept_index import open_index
from dasl_core.standalone.ranks import (
    join_ranks,
    leave_ranks,
    on_rank_0,
    with_resources_of_this_machine,
)
from dasl_core.standalone.run_dir import RunDirectory
from dasl_core.train.build import RunFiles, pretrain
from dasl_core.train.reporter import NullReporter


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and train; returns the exit code."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    if not args.spec.is_file():
        parser.error(f"SPEC.yaml: there is no file {args.spec}")
    if args.data is not None and not args.data.is_dir():
        parser.error(f"--data: there is no folder {args.data}")
    return train(args.spec, args.data, args.output, args.overrides, resume=args.resume)


def build_parser() -> argparse.ArgumentParser:
    """The command line, with the options of `dasl train`."""
    parser = argparse.ArgumentParser(
        prog="python -m dasl_core.standalone",
        description="Train without a service: alone, or on several ranks with "
        "torchrun -m dasl_core.standalone ...",
    )
    parser.add_argument("spec", metavar="SPEC.yaml", type=Path)
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="Change one field, such as method.temperature=0.1; the value is read as YAML. "
        "May be given several times.",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        help="Folder of images; without it the spec's `dataset` is taken as the folder.",
    )
    parser.add_argument(
        "--output",
        "-o",
        metavar="DIR",
        type=Path,
        default=Path("build/train"),
        help="Where results go. [default: build/train]",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="Continue from the newest checkpoint in the output folder.",
    )
    return parser


def train(
    spec_path: Path, data: Path | None, output: Path, overrides: list[str], *, resume: bool = False
) -> int:
    """Train according to the spec file; returns the exit code.

    Args:
        data: folder of images; None takes the spec's `dataset` as the folder.
        output: folder for checkpoints, metrics and plots.
        resume: continue from the newest checkpoint in `output`; from the first step if there is none.
    """
    try:
        spec, data = _read_spec(spec_path, data, overrides)
    except ValidationError as error:
        return fail("\n".join(map(str, field_problems(error, JobSpec))))
    except ValueError as error:
        return fail(str(error))
    device = join_ranks(spec)
    try:
        return _train(spec, data, output, resume, device)
    except SpecError as error:
        return fail("\n".join(map(str, error.problems)))
    except (ValueError, OSError, SafetensorError) as error:
        return fail(str(error))
    finally:
        leave_ranks()


def _read_spec(path: Path, data: Path | None, overrides: list[str]) -> tuple[JobSpec, Path]:
    """The spec with this machine's resources, and the folder of images.

    Raises:
        ValidationError: the spec is not valid.
        ValueError: the file cannot be read, or names no folder of images.
    """
    settings = apply_overrides(load_spec(path), overrides)
    if data is None:
        if not isinstance(settings.get("dataset"), str):
            raise ValueError("give the folder of images: as `dataset` in the spec, or --data DIR")
        data = Path(settings["dataset"])
        if not data.is_dir():
            raise ValueError(
                f"there is no folder {data}, as which `dataset` in {path} is taken; "
                "give the folder of images with --data DIR"
            )
        settings["dataset"] = data.resolve().name
    settings.setdefault("dataset", data.resolve().name)
    settings.pop("resources", None)  # the launcher and this machine decide
    return with_resources_of_this_machine(JobSpec.model_validate(settings)), data


def _train(spec: JobSpec, data: Path, output: Path, resume: bool, device: torch.device) -> int:
    if spec.evaluate.dataset is not None:
        raise ValueError("evaluate.dataset names a registered data set, which needs the service")
    if output.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--output {output} lies among the images of {data}: give another one")
    with ExitStack() as stack:
        run_dir: RunDirectory | None = None

        def take_output() -> Path | None:
            nonlocal run_dir
            run_dir = stack.enter_context(RunDirectory(output))
            return _start(run_dir, resume)

        start = on_rank_0(take_output)
        reporter = ConsoleReporter(run_dir) if run_dir is not None else None
        index, cache = on_rank_0(lambda: _open_images(data))
        # The folder may have another path on another machine.
        index = replace(index, root=Path(os.path.realpath(data)))
        spec = resolve(spec, index.facts())
        if run_dir is not None:
            if start is None:  # else the run resumes with its own one, or is refused
                run_dir.write_spec(spec.model_dump_json(indent=2))
            for skipped in index.skipped:
                say(f"skipped {skipped.path}: {skipped.reason}", "stderr")
        stack.enter_context(_interruptible(reporter))
        scratch = output if run_dir is None else run_dir.scratch
        outcome = pretrain(
            spec,
            index,
            reporter or NullReporter(),
            RunFiles(cache=_cache_root() / cache, scratch=scratch, resume=start),
            device=device,
            threads=spec.resources.cpus_per_worker,
        )
    if reporter is not None:
        if outcome == "cancelled":
            say("interrupted: continue with --resume", "stderr")
        elif start is not None and not reporter.saved:
            say(f"nothing was left to do: {start} is the end of the run")
    return 0 if outcome == "succeeded" else 130


def _start(run_dir: RunDirectory, resume: bool) -> Path | None:
    """The checkpoint to resume from, with a line for each damaged one; None: the first step."""
    start = run_dir.start(resume)
    for damage in run_dir.damaged:
        say(f"skipped a damaged checkpoint: {damage}", "stderr")
    if resume and start is None:
        say(f"no checkpoint in {run_dir.path}: starts with the first step", "stderr")
    return start


def _open_images(data: Path) -> tuple[DatasetIndex, str]:
    """The index of a folder of images, and the name of its cache folder."""
    listing = list_folder(data)
    name = listing.digest()
    return open_index(listing, _cache_root() / name), name


def _cache_root() -> Path:
    base = os.environ.get("DASL_CACHE_DIR") or os.path.expanduser("~/.cache/dasl")
    return Path(base) / "local"


@contextmanager
def _interruptible(reporter: ConsoleReporter | None) -> Iterator[None]:
    """End the run with a checkpoint on Ctrl-C, SIGTERM and a closed terminal; at once on a second one."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        if reporter is not None:
            reporter.interrupted = True
            # Not `print`: if it was interrupted, its buffer refuses a second writer.
            with suppress(OSError):  # the terminal is gone
                os.write(2, b"ends after this step; Ctrl-C again ends at once\n")

    # Ignored signals stay ignored: nohup ignores SIGHUP.
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
