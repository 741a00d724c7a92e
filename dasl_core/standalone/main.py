"""Training without a service: `python -m dasl_core.standalone`, alone or under torchrun."""

import argparse
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from dasl_core.data.index import DatasetIndex
from dasl_core.spec import (
    JobSpec,
    ResolvedResources,
    SpecError,
    evaluation_problem,
    read_record,
    resolve,
)
from dasl_core.spec.source import is_missing
from dasl_core.standalone.console import (
    USER_ERRORS,
    ConsoleReporter,
    ProgressPrinter,
    fail,
    print_line,
)
from dasl_core.standalone.images import open_images, print_warnings
from dasl_core.standalone.inputs import DataOptions, Locations, read_spec, start_weights
from dasl_core.standalone.ranks import join_ranks, leave_ranks, on_rank_0
from dasl_core.standalone.run_dir import RunDirectory, checkpoint_step, writing_to
from dasl_core.track.reporter import TrackingReporter
from dasl_core.track.tracker import TrackedRun
from dasl_core.train.build import RunFiles, pretrain
from dasl_core.train.checkpointing import CheckpointFailed
from dasl_core.train.preparing import prepare
from dasl_core.train.reporter import NullReporter


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and train; return the exit code."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    if not args.spec.is_file():
        parser.error(f"SPEC.yaml: {args.spec} does not exist")
    for option, location in (("--data", args.data), ("--evaluate-data", args.evaluate_data)):
        if location is not None and is_missing(location):
            parser.error(f"{option}: {location} does not exist")
    options = DataOptions(args.data, args.split, args.evaluate_data, args.evaluate_split)
    return train(
        args.spec,
        options,
        args.output,
        args.overrides,
        resume=args.resume,
        force=args.force,
        prepare_only=args.prepare,
    )


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
        metavar="LOCATION",
        help="Folder of images, or an archive, list or table of them; a path, or a URI such as "
        "s3://BUCKET/FOLDER. [default: `dataset` in the spec, read as a path]",
    )
    parser.add_argument("--split", metavar="NAME", help="Train on one split of the images only.")
    parser.add_argument(
        "--evaluate-data",
        metavar="LOCATION",
        help="Images to evaluate on, as with --data. [default: `evaluate.dataset` in the spec, read as a path, if "
        "it is set]",
    )
    parser.add_argument(
        "--evaluate-split", metavar="NAME", help="Evaluate on one split of these images only."
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
    parser.add_argument(
        "--force",
        action="store_true",
        help="Write to an output folder that has files of something else, and replace those of the same names.",
    )
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="Only decode the images into the cache that the spec needs. In one process.",
    )
    return parser


def train(
    spec_path: Path,
    options: DataOptions,
    output: Path,
    overrides: list[str],
    *,
    resume: bool = False,
    force: bool = False,
    prepare_only: bool = False,
) -> int:
    """Train a spec file; return the exit code.

    Args:
        options: image locations; by default the spec's `dataset` and, if set, `evaluate.dataset` are paths.
        output: folder for checkpoints, metrics and plots.
        resume: continue from the newest checkpoint in `output`; from the first step if there is none.
        force: use an output folder that has files of something else.
        prepare_only: only decode the images into the cache, without writing to `output`.
    """
    try:
        spec, locations = read_spec(spec_path, options, overrides)
    except ValueError as error:
        return fail(error)
    try:
        if prepare_only:
            return _prepare(spec, locations)
        return _train(spec, locations, output, resume, force, join_ranks(spec))
    except CheckpointFailed as error:
        return fail(
            f"{error}. See that {output} can be written and has space, then continue with --resume."
        )
    except USER_ERRORS as error:
        return fail(error)
    finally:
        leave_ranks()


def _train(
    spec: JobSpec,
    locations: Locations,
    output: Path,
    resume: bool,
    force: bool,
    device: torch.device,
) -> int:
    for location in locations.all():
        location.check_outside(output)
    with ExitStack() as stack:
        run_dir: RunDirectory | None = None

        def take_output() -> Path | None:
            nonlocal run_dir
            with writing_to(output):
                run_dir = stack.enter_context(RunDirectory(output, force=force))
            return _start(run_dir, resume)

        start = on_rank_0(take_output)
        reporter = ConsoleReporter(run_dir) if run_dir is not None else None
        (index, cache), (evaluate_on, evaluate_cache) = _open(locations)
        record = on_rank_0(lambda: start_weights(spec) if start is None else read_record(start))
        spec = resolve(spec, index.facts(), record)
        if spec.evaluate.dataset is not None and evaluate_on is not None:
            unfit = evaluation_problem(
                spec.evaluate.dataset, evaluate_on.facts(), index.facts(), spec.backbone
            )
            if unfit:
                raise SpecError([unfit])
        if run_dir is not None:
            if start is None:  # a resumed run already has its spec
                with writing_to(output):
                    run_dir.write_spec(spec.model_dump_json(indent=2))
            for read in (index, evaluate_on):
                if read is not None:
                    print_warnings(read)
        stack.enter_context(_interruptible(reporter))
        scratch = output if run_dir is None else run_dir.scratch
        tracked: TrackingReporter | None = None
        if run_dir is not None and reporter is not None:
            run, attempt = run_dir.begin_attempt(resume)
            step = None if start is None else checkpoint_step(start)
            # Trackers write directly to the output folder.
            described = TrackedRun(run, attempt, spec, step, run_dir.path)
            tracked = stack.enter_context(TrackingReporter(reporter, described))
        outcome = pretrain(
            spec,
            index,
            tracked or NullReporter(),
            RunFiles(cache=cache, evaluate_cache=evaluate_cache, scratch=scratch, resume=start),
            evaluate_on=evaluate_on,
            device=device,
            threads=spec.resources.narrow(ResolvedResources).cpus_per_worker,
        )
        if tracked is not None:
            tracked.ended(outcome)
    if reporter is not None:
        if outcome == "cancelled":
            print_line("Interrupted. Continue with --resume.", "stderr")
        elif start is not None and not reporter.saved:
            print_line(f"The run is already complete: {start} is its final checkpoint.")
    return 0 if outcome == "succeeded" else 130


def _open(
    locations: Locations,
) -> tuple[tuple[DatasetIndex, Path], tuple[DatasetIndex, Path] | tuple[None, None]]:
    """Return the index and the cache folder of the images to train on, and of those to evaluate on."""
    evaluated = locations.evaluate_data
    return open_images(locations.data), (None, None) if evaluated is None else open_images(
        evaluated
    )


def _prepare(spec: JobSpec, locations: Locations) -> int:
    (index, cache), (evaluate_on, evaluate_cache) = _open(locations)
    reporter = ProgressPrinter()
    with _interruptible(reporter):
        outcome = prepare(
            resolve(spec, index.facts(), start_weights(spec)),
            index,
            reporter,
            cache,
            evaluate_on=evaluate_on,
            evaluate_cache=evaluate_cache,
        )
    return 0 if outcome == "succeeded" else 130


def _start(run_dir: RunDirectory, resume: bool) -> Path | None:
    """Return the checkpoint to resume from (None: start at the first step), and print damaged ones."""
    start = run_dir.start(resume)
    for damage in run_dir.damaged:
        print_line(f"Skipped a damaged checkpoint: {damage}", "stderr")
    if resume and start is None:
        print_line(f"No checkpoint in {run_dir.path}. Starting with the first step.", "stderr")
    return start


@contextmanager
def _interruptible(reporter: ProgressPrinter | None) -> Iterator[None]:
    """End the run with a checkpoint on Ctrl-C, SIGTERM or a closed terminal; a second signal ends it at once."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        if reporter is not None:
            reporter.interrupted = True
            # Not `print`, whose buffer refuses a second writer after an interrupt.
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
