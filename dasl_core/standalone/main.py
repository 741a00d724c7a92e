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
from dasl_core.models.warm_start import pretrained_path
from dasl_core.spec import (
    JobSpec,
    Normalization,
    SpecError,
    apply_overrides,
    field_problems,
    load_spec,
    recorded_normalization,
    resolve,
)
from dasl_core.standalone.console import ConsoleReporter, fail, print_line
from dasl_core.standalone.index_cache import open_index
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
        parser.error(f"SPEC.yaml: {args.spec} does not exist")
    if args.data is not None and not args.data.is_dir():
        parser.error(f"--data: {args.data} is not a folder")
    return train(args.spec, args.data, args.output, args.overrides, resume=args.resume)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line, with the options of `dasl train`."""
    parser = argparse.ArgumentParser(
        prog="python -m dasl_core.standalone",
        description="Train without a service, in this process, or on several ranks with "
        "`torchrun -m dasl_core.standalone`.",
    )
    parser.add_argument(
        "spec", metavar="SPEC.yaml", type=Path, help="YAML or JSON file with the spec of a job."
    )
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="Change one field, such as method.temperature=0.1. The value is read as YAML. "
        "Can be repeated.",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        help="Folder of images. [default: `dataset` in the spec, read as a folder]",
    )
    parser.add_argument(
        "--output",
        "-o",
        metavar="DIR",
        type=Path,
        default=Path("build/train"),
        help="Folder for results. [default: build/train]",
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
    """Read the spec, with this machine's resources, and determine the folder of images.

    Raises:
        ValidationError: the spec is not valid.
        ValueError: the file cannot be read, or names no folder of images.
    """
    settings = apply_overrides(load_spec(path), overrides)
    if data is None:
        if not isinstance(settings.get("dataset"), str):
            raise ValueError(
                "dataset: missing. Set it to the folder of images, or pass --data DIR."
            )
        data = Path(settings["dataset"])
        if not data.is_dir():
            raise ValueError(
                f"dataset: {data} is not a folder. Pass the folder of images with --data DIR."
            )
        settings["dataset"] = data.resolve().name
    settings.setdefault("dataset", data.resolve().name)
    settings.pop("resources", None)  # set by the launcher and this machine
    return with_resources_of_this_machine(JobSpec.model_validate(settings)), data


def _train(spec: JobSpec, data: Path, output: Path, resume: bool, device: torch.device) -> int:
    if spec.evaluate.dataset is not None:
        raise ValueError(
            "evaluate.dataset: a registered data set needs the service. Hold out images instead."
        )
    if output.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--output: {output} is inside the folder of images. Choose another one.")
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
        spec = resolve(spec, index.facts(), on_rank_0(lambda: _recorded(spec, start)))
        if run_dir is not None:
            if start is None:  # a resumed run has its spec already
                run_dir.write_spec(spec.model_dump_json(indent=2))
            for skipped in index.skipped:
                print_line(f"Skipped {skipped.path}: {skipped.reason}", "stderr")
            for warning in index.warnings():
                print_line(f"Warning: {warning}.", "stderr")
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
            print_line("Interrupted. Continue with --resume.", "stderr")
        elif start is not None and not reporter.saved:
            print_line(f"The run is already complete: {start} is its final checkpoint.")
    return 0 if outcome == "succeeded" else 130


def _start(run_dir: RunDirectory, resume: bool) -> Path | None:
    """Return the checkpoint to resume from (None: the first step), and print the damaged ones."""
    start = run_dir.start(resume)
    for damage in run_dir.damaged:
        print_line(f"Skipped a damaged checkpoint: {damage}", "stderr")
    if resume and start is None:
        print_line(f"No checkpoint in {run_dir.path}. Starting with the first step.", "stderr")
    return start


def _recorded(spec: JobSpec, start: Path | None) -> Normalization | None:
    """Return the normalization that the checkpoint to resume from, or the weights to start from, record."""
    if start is None and spec.backbone.pretrained is not None:
        start = pretrained_path(spec.backbone.pretrained)
    return None if start is None else recorded_normalization(start)


def _open_images(data: Path) -> tuple[DatasetIndex, str]:
    """Open or make the index of a folder of images; also returns the name of its cache folder."""
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
                os.write(2, b"Stopping after this step. Ctrl-C again stops at once.\n")

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
