"""Check the certificate of a run: `dasl verify`, or `torchrun -m dasl_core.standalone.verify` for one on several ranks."""

import argparse
import json
import math
import os
import random
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import rank, world_size
from dasl_core.export.checkpoint import METRICS, WEIGHTS, finite
from dasl_core.export.network import exported_weights
from dasl_core.manifest import MANIFEST, find_damage
from dasl_core.models.warm_start import pretrained_path
from dasl_core.spec import ResolvedJobSpec, versions
from dasl_core.standalone.console import USER_ERRORS, fail, print_line
from dasl_core.standalone.images import open_images
from dasl_core.standalone.inputs import DataOptions, locations_of
from dasl_core.standalone.ranks import join_ranks, leave_ranks, on_rank_0
from dasl_core.train.build import RunFiles, build_trainer, configure_torch, open_run
from dasl_core.train.certificate import (
    STEPS,
    Certificate,
    Entry,
    describe_data,
    digest_file,
    digest_weights,
    environment,
    is_entry,
    read_certificate,
)
from dasl_core.train.progress import RunLength, digest_of
from dasl_core.train.reporter import NullReporter
from dasl_core.train.run import CPU
from dasl_core.train.serialization import STATE_FILES, load_state
from dasl_core.train.trainer import Trainer
from dasl_core.vocabulary import CERTIFICATE

# Where the bits may differ: relative difference of the loss of the first step after a checkpoint, of the mean loss
# up to the next entry, and absolute one of figures. Below 32 bits, rounding is a few thousand times coarser.
TOLERANCES = {True: (1e-3, 2e-2, 1e-2), False: (2e-2, 5e-2, 2e-2)}
_MOST_THREADS = 256
_REPORTED = ("evaluations", "epoch_losses", "verdict")
READ = {CERTIFICATE, WEIGHTS, METRICS, *STATE_FILES}
"""Files of a checkpoint that are read."""
# Exit codes; 2 is that of a wrong command line.
VERIFIED, FAILED, NOT_VERIFIABLE = 0, 1, 3


@dataclass(frozen=True)
class Result:
    """The result of a verification.

    Attributes:
        checkpoint: folder of the last checkpoint; None if nothing is shown about it: there is none, or the images are
            other ones.
        certificate: SHA-256 of its certificate.
    """

    code: int
    summary: str
    checkpoint: Path | None = None
    certificate: str = ""


@dataclass(frozen=True)
class Kept:
    """A checkpoint of the run that was kept."""

    folder: Path
    certificate: Certificate

    @property
    def step(self) -> int:
        return self.certificate.step

    @property
    def chain(self) -> list[Entry]:
        return self.certificate.chain


def find_kept(folder: Path) -> list[Kept]:
    """Find the checkpoints in a folder: that of a run, one with folders of checkpoints, or that of one checkpoint.

    Raises:
        ValueError: there is none with a certificate, or one is damaged.
    """
    places = ("", "[!.]*/", "checkpoints/[!.]*/")  # not those that are being written
    files = [*chain.from_iterable(folder.glob(place + CERTIFICATE) for place in places)]
    for path in chain.from_iterable(file.parent.iterdir() for file in files):
        if path.name in READ and not path.is_file():  # reading a device may never end
            raise ValueError(f"{path} is no regular file")
    kept = [Kept(file.parent, read_certificate(file)) for file in files]
    if not kept:
        raise ValueError(f"{folder} has no {CERTIFICATE}: it is not the folder of a run")
    return sorted(kept, key=lambda each: each.step)


# Errors of files that somebody has made up.
UNUSABLE = (
    *(ValueError, OSError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(AssertionError, RuntimeError, SafetensorError),
)
Window = tuple[Kept | None, Entry]
"""A checkpoint, None being the start of the run, and the next entry of the chain."""


class NotRepeatable(Exception):
    """The run cannot be repeated here, which says nothing about its certificate."""


@dataclass
class Verification:
    """A check of the certificate of a run, on all ranks.

    Attributes:
        kept: checkpoints of the run, oldest first; the last one's certificate is checked.
        failures: what is not as the certificate says, on rank 0.
    """

    kept: list[Kept]
    options: DataOptions
    scratch: Path
    device: torch.device = CPU
    failures: list[str] = field(default_factory=list)
    _other_images: bool = False
    _evaluated: str = ""

    @property
    def last(self) -> Kept:
        return self.kept[-1]

    @cached_property
    def spec(self) -> ResolvedJobSpec:
        """The spec that the certificate claims, on these ranks."""
        certificate = self.last.certificate
        spec = versions.load(certificate.spec, certificate.spec_version)
        here = {
            "workers": int(os.environ.get("WORLD_SIZE", "1")),
            "gpus_per_worker": int(torch.cuda.is_available()),
        }
        return spec.model_copy(update={"resources": spec.resources.model_copy(update=here)})

    def run(self, windows: int, seed: int, *, evaluate: bool) -> Result:
        """Check everything; print each result.

        Raises:
            ValueError: the images cannot be read.
            NotRepeatable: not here.
        """
        self._check_repeatable()
        configure_torch(self.device, self._threads, deterministic=self.spec.train.deterministic)
        differing = self._differences(-1, self.last.step + 1)
        self._say(
            "compares bit for bit, because devices and libraries are equal"
            if not differing
            else f"compares within a tolerance, because of other {', '.join(differing)}: bits may differ"
        )
        if rank() == 0:
            for kept in self.kept:
                try:
                    problems = list(self._file_problems(kept))
                except UNUSABLE as error:
                    problems = [f"a file is not as DASL writes it: {error!r}"]
                self._check(f"files of step {kept.step}", problems)
        drawn = self._draw(windows, seed)
        all_exact = True
        for begin, end in drawn:
            first = 0 if begin is None else begin.step
            exact = not self._differences(first, end.step)
            all_exact = all_exact and exact
            name = f"steps {first} to {end.step}{'' if exact else ', within a tolerance'}"
            self._check(name, self._replay(begin, end, exact=exact))
        problems = self._last_problems(evaluate=evaluate)
        self._check("images, weights and figures", problems)
        if self.failures:
            return self._result(FAILED, f"NOT as certified: {'; '.join(self.failures)}")
        if not drawn:
            text = "Not verifiable: no checkpoint is kept from which steps could be repeated"
            return self._result(NOT_VERIFIABLE, text)
        text = (
            f"Verified {'bit for bit' if all_exact else 'within a tolerance'}: {len(drawn)} of {len(self.windows)} windows "
            f"of the {len(self.last.chain)} in the chain, drawn with --seed {seed}"
        )
        if (covered := self.last.chain[-1].step) != self.last.step:
            text += f"; steps {covered} to {self.last.step} are in none"
        if branched_at := self.last.certificate.branched_at:
            text += f"; nothing before step {branched_at}, at which it branched"
        elif not self._has_start:
            text += "; not the start, whose backbone.pretrained is not here"
        figures = self._evaluated if evaluate else "; --evaluate also checks the figures"
        return self._result(VERIFIED, text + figures)

    def _check_repeatable(self) -> None:
        certificate, ranks = self.last.certificate, self.last.certificate.environments[-1].ranks
        mapped = any(about.get("files") is None for about in certificate.data.values())
        if self.spec.backbone.is_own or certificate.own_views or mapped:
            raise NotRepeatable("its network, views or images were made by its author's code")
        if any(kept.certificate.unreadable for kept in self.kept):
            raise NotRepeatable("some of its images could not be read while it ran")
        if ranks != world_size() and self._needs_its_ranks:
            raise NotRepeatable(f"it had {ranks} ranks. Use as many: torchrun -m {__spec__.name}")

    @property
    def _needs_its_ranks(self) -> bool:
        """Whether each rank draws its own paths, or has its own part of the clusters."""
        dar = self.spec.dar
        return bool(self.spec.backbone.drop_path) or (dar is not None and dar.labels == "cluster")

    def _differences(self, begin: int, end: int) -> list[str]:
        """Return what is other here than where the steps from one to the other were trained."""
        here, claimed = environment(self.device), self.last.certificate.environments
        until = [*(other.step for other in claimed[1:]), math.inf]
        those = [a for a, last in zip(claimed, until, strict=True) if a.step < end and last > begin]
        return [name for name in here if any(getattr(each, name) != here[name] for each in those)]

    def _result(self, code: int, summary: str) -> Result:
        self._say(summary)
        digest = digest_file(self.last.folder / CERTIFICATE)
        folder = None if self._other_images else self.last.folder
        return Result(code, summary[:500], folder, digest)

    @property
    def _threads(self) -> int:
        claimed = self.last.certificate.environments[-1].threads
        return claimed if 0 < claimed <= _MOST_THREADS else 1

    @cached_property
    def _has_start(self) -> bool:
        """Whether the run can be started again: it is no branch, and the weights to start from are here."""
        if (weights := self.spec.backbone.pretrained) is not None:
            try:
                pretrained_path(weights)
            except ValueError:
                return False
        return not self.last.certificate.branched_at

    @cached_property
    def windows(self) -> list[Window]:
        """The windows that can be repeated."""
        starts: list[Kept | None] = [*self.kept]
        if self._has_start:
            starts.insert(0, None)
        found = []
        for start in starts:
            step = 0 if start is None else start.step
            end = next((entry for entry in self.last.chain if entry.step > step), None)
            if end is not None and not (
                self._needs_its_ranks and "ranks" in self._differences(step, end.step)
            ):
                found.append((start, end))
        return found

    def _draw(self, count: int, seed: int) -> list[Window]:
        """Draw windows, always with the last one: it ends with the weights that are exported."""
        if not (count := min(count, len(self.windows))):
            return []
        drawn = random.Random(seed).sample(self.windows[:-1], count - 1)
        return sorted(drawn, key=lambda window: window[1].step) + self.windows[-1:]

    def _file_problems(self, kept: Kept) -> Iterator[str]:
        """Compare the files of a checkpoint with its certificate, and that with the last one."""
        if (kept.folder / MANIFEST).exists() and (damage := find_damage(kept.folder)):
            yield damage
        for name in sorted(STATE_FILES):
            if digest_file(kept.folder / name) != kept.certificate.state.get(name):
                yield f"{name} is not the one of the certificate"
        link = ""
        for entry in kept.chain:
            link = digest_of(link, entry.model_dump(exclude={"link"}))
            if link != entry.link:
                yield f"the chain is broken at step {entry.step}"
                break
        if self.last.chain[: len(kept.chain)] != kept.chain:
            yield "its chain is not the beginning of that of the last checkpoint"
        here, last = _about_training(kept.certificate), _about_training(self.last.certificate)
        for name in (name for name in here if here[name] != last[name]):
            yield f"its certificate has another {name}"
        state = load_state(kept.folder)
        for name in ("step", "ended", "branched_at"):
            if state["progress"][name] != getattr(kept.certificate, name):
                yield f"the training state has another {name}"
        if state["progress"]["chain"] != [entry.model_dump() for entry in kept.chain]:
            yield "the training state has another chain"
        if finite(state["progress"]["evaluations"]) != kept.certificate.figures:
            yield "the figures are not those of the training state"
        reported = json.loads((kept.folder / METRICS).read_text(encoding="utf-8"))
        about = kept.certificate.figures, state["progress"]["losses"], state["progress"]["verdict"]
        if [reported[name] for name in _REPORTED] != finite(about):
            yield f"{METRICS} has other figures"
        at = [entry.weights for entry in kept.chain if entry.step == kept.step]
        if at and digest_weights(state["method"]) != at[0]:
            yield "the weights of the training state are not those of the chain"

    @cached_property
    def _images(self) -> list[tuple[DatasetIndex, Path]]:
        """The indexes and caches of the data sets."""
        return [open_images(location) for location in locations_of(self.spec, self.options).all()]

    @contextmanager
    def _trainer(self, begin: Kept | None) -> Iterator[Trainer]:
        folder = None if begin is None else begin.folder
        try:  # nothing of the checkpoint is read
            (index, cache), *others = self._images
            evaluate_on, evaluate_cache = others[0] if others else (None, None)
            run = open_run(
                self.spec,
                index,
                NullReporter(),
                RunFiles(cache, self.scratch, evaluate_cache, folder),
                evaluate_on=evaluate_on,
                device=self.device,
                threads=self._threads,
            )
            trainer = build_trainer(run)
        except UNUSABLE as error:
            raise NotRepeatable(str(error)) from error
        try:
            yield trainer
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or "allocate" in str(error):  # of a GPU or of torch
                raise NotRepeatable(str(error)) from error
            raise
        finally:
            trainer.close()

    def _replay(self, begin: Kept | None, end: Entry, *, exact: bool) -> list[str]:
        """Train a window again, and compare its entry of the chain."""
        if end.step - (0 if begin is None else begin.step) > STEPS:  # which may take forever
            return [f"it has more than {STEPS} steps"]
        try:
            with self._trainer(begin) as trainer:
                entry = Entry(**trainer.replay(end.step))
        except UNUSABLE as error:
            return [repr(error)]
        if rank() != 0:
            return []
        if exact:
            losses, others = [(e.terms, e.first_loss, e.mean_loss) for e in (entry, end)]
            problems = ["the losses of its steps differ"] if losses != others else []
            if entry.weights != end.weights:
                problems.append("the weights after it differ")
            return problems
        compared = {
            "first loss": (entry.first_loss, end.first_loss, self._tolerances[0]),
            "mean loss": (entry.mean_loss, end.mean_loss, self._tolerances[1]),
        }
        return [
            f"its {name} is {here}, and {there} in the certificate"
            for name, (here, there, most) in compared.items()
            if here != there
            and (here is None or there is None or not math.isclose(here, there, rel_tol=most))
        ]

    @property
    def _tolerances(self) -> tuple[float, float, float]:
        return TOLERANCES[self.spec.train.precision in ("fp32", "fp64")]

    def _last_problems(self, *, evaluate: bool) -> list[str]:
        """Compare images, exported weights and figures with those of the last checkpoint."""
        certificate, problems = self.last.certificate, list[str]()
        found: list[dict[str, Any]] = []
        try:
            with self._trainer(self.last) as trainer:
                if rank() == 0:
                    data = describe_data(trainer.run.data, lambda: None)
                    problems += list(_data_problems(certificate.data, data))
                    if trainer.run.data.digest() != certificate.names:
                        problems.append("the training images have other names or sizes")
                    self._other_images = bool(problems)
                    problems += self._length_problems(trainer.run.length)
                trainer.checkpointer.resume()
                weights = exported_weights(trainer.method.representation)
                exported = load_file(self.last.folder / WEIGHTS)
                if weights.keys() != exported.keys() or not all(
                    torch.equal(weights[name], exported[name]) for name in weights
                ):
                    problems.append(f"{WEIGHTS} has other weights than the training state")
                if evaluate and any(e["step"] == self.last.step for e in certificate.figures):
                    trainer.run.progress.evaluations = []
                    validator = trainer.validator
                    trains = validator.trains_at_end and trainer.run.progress.ended
                    validator.evaluate("backbone", final=trains)
                    found = trainer.run.progress.evaluations
            # A run that resumed with other evaluations measured the baselines with those before.
            first = self.kept[0].certificate.spec.get("evaluate")
            if evaluate and self._has_start and certificate.spec.get("evaluate") == first:
                with self._trainer(None) as trainer:
                    trainer.validator.evaluate_baselines()
                    found += trainer.run.progress.evaluations
            problems += list(self._figure_problems(found))
        except UNUSABLE as error:
            problems.append(repr(error))
        return problems

    def _length_problems(self, length: RunLength) -> Iterator[str]:
        last, steps = self.last.certificate, [entry.step for entry in self.last.chain]
        # A branch with other settings has a chain of its own.
        for begin in {0, last.branched_at}:
            trained = range(begin + 1, min(last.step, length.total_steps) + 1)
            due = (step for step in trained if is_entry(step, length.steps_per_epoch))
            if list(islice(due, len(steps) + 1)) == steps:
                break
        else:
            yield "the chain has other steps than a run"
        if last.ended and last.step != length.total_steps and self.spec.train.stop is None:
            yield f"it ended at step {last.step} of {length.total_steps}"

    def _figure_problems(self, found: list[dict[str, Any]]) -> Iterator[str]:
        here = {(record["step"], record["subject"]): record["metrics"] for record in finite(found)}
        steps = sorted({step for step, _ in here})
        self._evaluated = f"; figures of steps {steps} too"
        records = [r for r in self.last.certificate.figures if r["step"] in steps]
        claimed = {(record["step"], record["subject"]): record["metrics"] for record in records}
        if len(claimed) < len(records):
            yield "it has two evaluations of the same network"
        for key in sorted(here.keys() | claimed.keys()):
            # A run that resumed at this step may have evaluated before or after that.
            most = self._tolerances[2] if self._differences(key[0] - 1, key[0] + 1) else 0.0
            values, others = here.get(key, {}), claimed.get(key, {})
            for name in sorted(values.keys() | others.keys()):
                value, other = values.get(name), others.get(name)
                numbers = isinstance(value, float | int) and isinstance(other, float | int)
                if value != other and not (numbers and abs(value - other) <= most):
                    yield f"{name} of {key[1]} is {value}, and {other} in the certificate"

    def _check(self, name: str, problems: list[str]) -> None:
        """Print the result of a check, and count its failure."""
        if rank() == 0:
            self._say(f"{'FAILED' if problems else 'ok':6}  {name}")
            for problem in problems:
                self._say(f"        {problem}")
            self.failures += [name] if problems else []

    @staticmethod
    def _say(text: str) -> None:
        if rank() == 0:
            print_line(text)


def _about_training(certificate: Certificate) -> dict[str, Any]:
    """What all certificates of a run must have; a resumed one may have other resources, evaluations and names."""
    spec = versions.load(certificate.spec, certificate.spec_version)
    return {
        "spec": spec.deciding(),
        "names": certificate.names,
        "data": next(iter(certificate.data.values()), None),
        "branched_at": certificate.branched_at,
    }


def _data_problems(claimed: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    if claimed.keys() != found.keys():
        yield f"the data sets are {', '.join(found)}, and {', '.join(claimed)} in the certificate"
        return
    for name, about in found.items():
        for part, value in about.items():
            if value != claimed[name][part]:
                yield f"{name} has other {part} than those of the certificate"


def verify(
    folder: Path,
    options: DataOptions,
    *,
    windows: int = 3,
    evaluate: bool = False,
    seed: int | None = None,
) -> Result:
    """Verify the certificate of a run. The exit code is 0, 1 if it fails, 3 if it cannot be repeated here.

    Args:
        folder: of a run, of its checkpoints, or of one of them.
        options: image locations; by default the data set's name is a path.
        windows: how many windows to train again.
        evaluate: also compute the figures again.
        seed: chooses the windows; None: at random, so that they are not known in advance.
    """
    try:
        kept = find_kept(folder)
        with tempfile.TemporaryDirectory() as scratch:
            verification = Verification(kept, options, Path(scratch))
            verification.device = join_ranks(verification.spec)
            drawn = on_rank_0(lambda: secrets.randbelow(1 << 32) if seed is None else seed)
            return verification.run(windows, drawn, evaluate=evaluate)
    except (*USER_ERRORS, NotRepeatable) as error:
        fail(error)
        return Result(NOT_VERIFIABLE, str(error))
    finally:
        leave_ranks()


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and verify; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dasl_core.standalone.verify",
        description="Verify a run on as many ranks as it had, with `torchrun -m dasl_core.standalone.verify`.",
    )
    parser.add_argument("run", metavar="RUN", type=Path)
    for option in ("--data", "--split", "--evaluate-data", "--evaluate-split"):
        parser.add_argument(option)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--seed", type=int)
    args = parser.parse_args(arguments)
    options = DataOptions(args.data, args.split, args.evaluate_data, args.evaluate_split)
    result = verify(args.run, options, windows=args.windows, evaluate=args.evaluate, seed=args.seed)
    return result.code


if __name__ == "__main__":
    sys.exit(main())
