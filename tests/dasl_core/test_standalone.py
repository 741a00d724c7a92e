"""Training without a service, alone and under torchrun."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.distributed as dist
import typer
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from dasl_core.data.drawing import Drawer
from dasl_core.standalone import main as standalone
from dasl_core.standalone.console import ConsoleReporter
from dasl_core.standalone.inputs import DataOptions
from dasl_core.standalone.ranks import leave_ranks
from dasl_core.standalone.run_dir import RunDirectory
from dasl_core.train.trainer import Trainer
from service.cli.app import app
from tests.support import training_world
from tests.support.training_world import image_folder, tiny_spec

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with `pictures/`, `spec.yaml` and its own cache."""
    image_folder(tmp_path / "pictures")
    (tmp_path / "pictures" / "class-0" / "broken.png").write_bytes(b"no image")
    write_spec(tmp_path)
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    # One thread for a run in this process, as with a launcher that puts one rank on each core.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(os.cpu_count()))
    return tmp_path


@pytest.fixture
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no ONNX with the last checkpoint, which takes longer than a tiny run itself."""
    export = "dasl_core.train.checkpointing.export_backbone"
    monkeypatch.setattr(export, training_world.without_onnx)


def write_spec(folder: Path, **changes: Any) -> None:
    spec = tiny_spec(dataset=str(folder / "pictures"), **changes)
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))


def train(
    folder: Path,
    *overrides: str,
    output: str = "out",
    resume: bool = False,
    options: DataOptions = DataOptions(),  # noqa: B008
    prepare_only: bool = False,
) -> int:
    """Train in this process."""
    return standalone.train(
        folder / "spec.yaml",
        options,
        folder / output,
        list(overrides),
        resume=resume,
        prepare_only=prepare_only,
    )


def command(folder: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> Any:
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(
        [sys.executable, *launcher, "-m", "dasl_core.standalone", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


def steps_of(output: Path) -> list[dict[str, Any]]:
    """Return the points of steps, without that of the final evaluation's time."""
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [point for point in map(json.loads, lines) if "loss" in point["values"]]


def weights(output: Path, step: int = 9) -> dict[str, torch.Tensor]:
    return load_file(output / "checkpoints" / f"step-{step:09d}" / "backbone.safetensors")


def test_prepared_images_are_not_decoded_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DASL_SHARDS_URI", str(folder / "shards"))
    assert train(folder, prepare_only=True) == 0
    assert not (folder / "out").exists()
    assert "images_cached: The decoded images of pictures are stored in" in capsys.readouterr().out

    def fail(*_: object) -> None:
        raise AssertionError("an image was decoded")

    monkeypatch.setenv("DASL_CACHE_DIR", str(folder / "another-node"))
    monkeypatch.setattr(Drawer, "draw_valid", fail)
    assert train(folder, prepare_only=True) == 0


def test_preparation_without_room_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DASL_CACHE_MAX_BYTES", "10")
    assert train(folder, prepare_only=True) == 1
    assert "none of the images of pictures could be cached: they take" in capsys.readouterr().err


def test_full_disks_are_named_with_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    remedy = "cannot be written: No space left on device. Choose a folder that can be written and has space."
    for written in ("__init__", "write_spec"):
        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, written, full)
            assert train(folder) == 1
        assert f"Error: --output: {folder / 'out'} {remedy}\n" in capsys.readouterr().err
    monkeypatch.setattr("dasl_core.data.canvases.CacheFolder", full)
    assert train(folder, prepare_only=True) == 1
    printed = capsys.readouterr()
    reason = f"{folder / 'cache'}/\\S+ cannot be written: No space left on device. Free disk space, or set DASL_CACHE_DIR"
    assert re.search(f"none of the images of pictures could be cached: {reason}", printed.err)
    assert re.search(f"images_not_cached: .* is slow: {reason}", printed.out)
    assert "Errno" not in printed.err + printed.out


@pytest.mark.slow
def test_command_line_trains_on_folder(folder: Path) -> None:
    done = command(folder, "spec.yaml", "-o", "out", "--set", "train.epochs=2")
    assert done.returncode == 0, done.stderr
    assert "Skipped class-0/broken.png" in done.stderr
    assert "evaluation of untrained at epoch 0" in done.stdout
    assert "step 6/6" in done.stdout
    output = folder / "out"
    [event_file] = output.glob("events.out.tfevents.*")
    assert {file.name for file in output.iterdir()} == {
        *("checkpoints", "metrics.jsonl", "report.html", "spec.json", ".dasl-run"),
        *("curves.png", "distances.png", "map.png", "neighbours.png", "norms.png"),
        *("histograms.json", "map.json", "neighbours.json", "neighbours.webp"),
        *("thumbnails.json", "thumbnails.webp"),
        *("attempt.json", event_file.name),
    }
    assert f"tracking: TensorBoard: tensorboard --logdir {output.name}" in done.stdout
    points = steps_of(output)
    assert [point["step"] for point in points] == [1, 2, 3, 4, 5, 6]
    resolved = json.loads((output / "spec.json").read_text())
    assert "auto" not in str(resolved)
    assert resolved["train"]["epochs"] == 2
    assert sorted(f.name for f in (output / "checkpoints").iterdir()) == [
        "step-000000003",
        "step-000000006",
    ]


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_resume_continues_from_newest_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(folder, output="undisturbed") == 0

    class Killed(BaseException):
        pass

    def killed(trainer: Trainer, *arguments: Any) -> Any:
        if trainer.run.progress.step == 7:
            raise Killed
        return step(trainer, *arguments)

    step = Trainer.step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", killed)
        with pytest.raises(Killed):
            train(folder)
    figures = folder / "out" / "metrics.jsonl"
    with figures.open("a") as file:  # a step that was not saved, and half of the next one
        file.write('{"step": 7, "values": {"loss": -1}}\n{"step": 8, "va')
    assert train(folder, resume=True) == 0
    steps = steps_of(folder / "out")
    assert [point["step"] for point in steps] == list(range(1, 10))
    assert all(point["values"]["loss"] > 0 for point in steps)
    expected, resumed = weights(folder / "undisturbed"), weights(folder / "out")
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_run_is_evaluated_on_another_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it has the same name, as parts of a data set may."""
    test = image_folder(folder / "test" / "pictures", per_class=2)
    assert train(folder, f"evaluate.dataset={test}", "train.epochs=1") == 0
    caches = (folder / "cache" / "local").glob("*/in-use")
    assert [len([*cache.parent.glob("*.npy")]) for cache in caches] == [1, 1]
    assert "step 3/3" in capsys.readouterr().out  # 27 images in batches of 8: none is held out
    ran = json.loads((folder / "out" / "spec.json").read_text())
    assert (ran["dataset"], ran["evaluate"]["dataset"]) == ("pictures", "test-pictures")
    (checkpoint,) = (folder / "out" / "checkpoints").iterdir()
    metrics = json.loads((checkpoint / "metrics.json").read_text())
    assert metrics["data"]["held_out_images"] == 6
    assert 0 < metrics["evaluations"][-1]["metrics"]["knn_top1"] <= 1


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_splits_of_one_source_are_trained_and_evaluated_on(folder: Path) -> None:
    for split, per_class in (("train", 8), ("test", 2)):
        image_folder(folder / "parts" / split, per_class=per_class)
    parts = str(folder / "parts")
    options = DataOptions(parts, "train", parts, "test")
    named = ("dataset=birds", "evaluate.dataset=owls")  # as in a service: other images than these
    assert train(folder, *named, "train.epochs=1", options=options) == 0
    ran = json.loads((folder / "out" / "spec.json").read_text())
    assert (ran["dataset"], ran["evaluate"]["dataset"]) == ("parts-train", "parts-test")
    (checkpoint,) = (folder / "out" / "checkpoints").iterdir()
    data = json.loads((checkpoint / "metrics.json").read_text())["data"]
    assert (data["train_images"], data["held_out_images"]) == (24, 6)
    card = (checkpoint / "README.md").read_text()
    assert "on `parts-train`" in card
    assert "the data set `parts-test`" in card


@pytest.mark.parametrize("written", ["{}", "{}/", "file://{}"])
def test_same_images_are_not_evaluated_on_by_another_name(
    folder: Path, capsys: pytest.CaptureFixture[str], written: str
) -> None:
    pictures = str(folder / "pictures")
    options = DataOptions(pictures, evaluate_data=written.format(pictures))
    assert train(folder, "dataset=birds", "evaluate.dataset=others", options=options) == 1
    assert train(folder, f"evaluate.dataset={written.format(pictures)}") == 1
    assert capsys.readouterr().err.count("evaluate.dataset: must differ from `dataset`") == 2


def test_split_to_evaluate_on_needs_images(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, options=DataOptions(evaluate_split="test")) == 1
    assert "--evaluate-split: needs images to evaluate on." in capsys.readouterr().err


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_resumed_run_keeps_normalization_of_deleted_weights(folder: Path) -> None:
    """A timm file with its config.json; resuming needs neither."""
    hub = folder / "hub"
    hub.mkdir()
    save_file(timm.create_model("test_resnet").state_dict(), hub / "model.safetensors")
    recorded = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (hub / "config.json").write_text(json.dumps({"pretrained_cfg": recorded}))
    start = f"backbone.pretrained={hub / 'model.safetensors'}"
    assert train(folder, start, "train.epochs=1") == 0
    shutil.rmtree(hub)
    assert train(folder, start, "train.epochs=1", resume=True) == 0
    (checkpoint,) = (folder / "out" / "checkpoints").iterdir()
    preprocessing = json.loads((checkpoint / "model.json").read_text())["preprocessing"]
    assert preprocessing.items() >= recorded.items()


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_output_of_earlier_run_is_refused_without_resume(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, "train.epochs=1") == 0
    assert train(folder, "train.epochs=1") == 1
    assert "contains checkpoints of a run. Pass --resume" in capsys.readouterr().err
    before = (folder / "out" / "spec.json").read_text()
    assert train(folder, "train.epochs=1", "train.seed=9", resume=True) == 1
    assert "other settings" in capsys.readouterr().err
    assert (folder / "out" / "spec.json").read_text() == before
    assert train(folder, "train.epochs=1", resume=True) == 0
    assert "The run is already complete" in capsys.readouterr().out
    shutil.rmtree(folder / "out" / "checkpoints")  # as if the run ended before its first one
    assert train(folder, "train.epochs=1") == 1
    assert "contains metrics.jsonl of a run. Pass --resume to continue" in capsys.readouterr().err
    assert train(folder, "train.epochs=1", resume=True) == 0
    assert "Starting with the first step" in capsys.readouterr().err
    assert (folder / "out" / "metrics.jsonl.old").read_text().count('"loss":') == 3, (
        "nothing is lost"
    )
    points = steps_of(folder / "out")
    assert [point["step"] for point in points] == [1, 2, 3]


def test_output_of_active_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory(folder / "out"):
        assert train(folder) == 1
        assert train(folder, resume=True) == 1
    assert capsys.readouterr().err.count("another run is writing to") == 2


class Interrupting(io.RawIOBase):
    """Output that triggers Ctrl-C as soon as a step is printed."""

    def __init__(self) -> None:
        self.pressed = False

    def writable(self) -> bool:
        return True

    def write(self, line: Any) -> int:
        if b"step 1" in bytes(line) and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)
        return len(line)


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_ctrl_c_during_print_saves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler must not use `print`: Python's buffer refuses a second writer."""
    reader = Interrupting()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(reader)))
    with handled(signal.SIGINT, signal.default_int_handler):
        assert train(folder, "train.epochs=30") == 130
    assert reader.pressed
    assert list((folder / "out" / "checkpoints").iterdir())


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_problems_of_images_are_printed_with_escaped_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = folder / "pictures" / "class-0"
    (images / "a\x1b[2J\nepoch 9.png").write_bytes(b"no image")
    for name in ("b.png", "c.png"):
        (images / name).touch()
    Image.fromarray(np.full((20, 20), 4095, dtype=np.uint16)).save(images / "deep.png")
    assert train(folder, "train.epochs=1") == 0
    printed = capsys.readouterr().err
    # One of them is in the fixture.
    assert r"Skipped 2 files, such as class-0/a\x1b[2J\nepoch 9.png: the content" in printed
    assert "Skipped 2 files, such as class-0/b.png: the file is empty\n" in printed
    assert "Warning: The images differ in depth (" in printed


@pytest.mark.parametrize("processes", [1, 5])
def test_checkpoint_within_an_epoch_is_removed_by_the_second_after_it(
    tmp_path: Path, processes: int
) -> None:
    kept, each = [], 5 // processes
    for first in range(1, 6, each):
        with RunDirectory(tmp_path) as run_dir:
            reporter = ConsoleReporter(run_dir)
            for step in range(first, first + each):
                folder = run_dir.scratch / str(step)
                folder.mkdir()
                (folder / "metrics.json").write_text(json.dumps({"epoch": step / 2}))
                reporter.checkpoint(folder, step, step / 2, {}, final=False)
                kept.append([int(path.name[5:]) for path in sorted(tmp_path.glob("checkpoints/*"))])
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5]]


def test_event_names_its_type_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory(tmp_path) as run_dir:
        ConsoleReporter(run_dir).event("verdict", "Verdict: healthy", {})
    assert capsys.readouterr().out == "verdict: healthy\n"


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_failed_final_checkpoint_names_its_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "add_checkpoint", full)
    assert train(folder, "train.epochs=1") == 1
    stderr = capsys.readouterr().err
    assert "The checkpoint of step 3 could not be written: [Errno 28] No space left" in stderr
    assert f"See that {folder / 'out'} can be written and has space, then" in stderr


@pytest.mark.usefixtures("without_plots", "without_onnx")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_terminal_does_not_end_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    (folder / "pictures" / "class-0" / "none.png").write_bytes(b"no image")  # for stderr
    with open("/dev/full", "w", encoding="utf-8") as gone:
        monkeypatch.setattr(sys, stream, gone)
        assert train(folder, "train.epochs=1") == 0
        assert getattr(sys, stream) is not gone
        getattr(sys, stream).close()
        with pytest.raises(OSError, match="No space left"):
            gone.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), gone.fileno())  # for what is left in its buffer
    assert weights(folder / "out", 3)


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_metrics_are_written_after_full_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def until_step_5(output: RunDirectory, points: list[dict[str, Any]]) -> None:
        if points and points[-1]["step"] <= 5:
            output._unwritten += [json.dumps(point) + "\n" for point in points]
            raise OSError(28, "No space left on device")
        write(output, points)

    write = RunDirectory.add_metrics
    monkeypatch.setattr(RunDirectory, "add_metrics", until_step_5)
    assert train(folder) == 0
    assert capsys.readouterr().out.count("metrics.jsonl cannot be written") == 1
    points = steps_of(folder / "out")
    assert [point["step"] for point in points] == list(range(1, 10))


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_signal_saves_checkpoint_that_resumes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of three, in one run."""
    assert train(folder, output="undisturbed") == 0
    step, signals = Trainer.step, {2: signal.SIGINT, 4: signal.SIGTERM, 7: signal.SIGHUP}

    def interrupted(trainer: Trainer, *arguments: Any) -> Any:
        if signum := signals.get(trainer.run.progress.step):
            os.kill(os.getpid(), signum)
        return step(trainer, *arguments)

    for at, signum in signals.items():
        with monkeypatch.context() as patch, handled(signum, signal.default_int_handler):
            patch.setattr(Trainer, "step", interrupted)
            assert train(folder, resume=at > 2) == 130
        assert "Interrupted. Continue with --resume." in capsys.readouterr().err
        assert (folder / "out" / "checkpoints" / f"step-{at + 1:09d}").is_dir()
    assert train(folder, resume=True) == 0
    expected, resumed = weights(folder / "undisturbed"), weights(folder / "out")
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_ignored_signal_stays_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with nohup, or a shell's background jobs."""
    step = Trainer.step

    def hung_up(trainer: Trainer, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        return step(trainer, *arguments)

    with monkeypatch.context() as patch, handled(signal.SIGHUP, signal.SIG_IGN):
        patch.setattr(Trainer, "step", hung_up)
        assert train(folder, "train.epochs=1") == 0


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Set a signal handler, since the parent of the tests may ignore the signal."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_resume_skips_damaged_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(folder) == 0
    expected = weights(folder / "out")
    checkpoints = folder / "out" / "checkpoints"
    shutil.rmtree(checkpoints / "step-000000006")
    (checkpoints / "step-000000009" / "training_state.safetensors").write_bytes(b"half")
    (checkpoints / "step-notes").mkdir()
    with (folder / "out" / "metrics.jsonl").open("a") as file:
        file.write("no figures\n")
    assert train(folder, resume=True) == 0
    assert "Skipped a damaged checkpoint: " in capsys.readouterr().err
    again = weights(folder / "out")
    assert all(torch.equal(expected[name], again[name]) for name in expected)
    points = steps_of(folder / "out")
    assert [point["step"] for point in points] == list(range(1, 10))


def test_output_inside_images_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data in (None, f"file://{folder / 'pictures'}"):
        assert train(folder, output="pictures/out", options=DataOptions(data)) == 1
        assert "is inside the folder of images" in capsys.readouterr().err
    assert not (folder / "pictures" / "out").exists()


BAD: list[tuple[list[str], str]] = [
    (["method.name=simclrr"], "method.name: is not a known method; did you mean 'simclr'?"),
    (["train.bach_size=4"], "train.bach_size: unknown key"),
    (["train.batch_size=1000"], "train.batch_size: is larger than the 24 images"),
    (["dataset=nowhere"], "dataset: nowhere does not exist"),
    (["dataset=null"], "pass --data DIR"),
    (["train"], "--set train: expected field=value"),
    (
        ["evaluate.dataset=other"],
        "evaluate.dataset: other does not exist. Pass the folder of images with --evaluate",
    ),
    (["train.optimizer={name: sgd, lr: 1e4, weight_decay: 100}"], "try a lower train.optimizer.lr"),
]


@pytest.mark.parametrize(("overrides", "message"), BAD)
@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_invalid_run_prints_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], message: str
) -> None:
    assert train(folder, *overrides) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_invalid_spec_fails_with_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert standalone.main(["spec.yaml", "--set", "train.epochs=0"]) == 1
    printed = capsys.readouterr().err
    assert "train.epochs: is out of range (given 0; expected a number >= 1, or 'auto')" in printed
    assert not (folder / "build").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.yaml"], "SPEC.yaml: none.yaml does not exist"),
        (["spec.yaml", "--data", "nowhere"], "--data: nowhere does not exist"),
        (["spec.yaml", "--evaluate-data", "nowhere"], "--evaluate-data: nowhere does not exist"),
    ],
)
def test_missing_file_is_wrong_usage(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as raised:
        standalone.main(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_options_are_those_of_dasl_train() -> None:
    ours = {name for action in standalone.build_parser()._actions for name in action.option_strings}
    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    theirs = {name for option in command.params for name in option.opts if name.startswith("-")}
    assert ours - {"-h", "--help"} == theirs - {"--help"}


@pytest.mark.usefixtures("without_plots", "without_onnx")
def test_resources_come_from_machine(folder: Path) -> None:
    """Also if the batch is not divisible by the number of workers in the spec."""
    write_spec(folder, resources={"workers": 3, "max_hours": 1})
    assert train(folder, "train.epochs=1") == 0
    settled = json.loads((folder / "out" / "spec.json").read_text())["resources"]
    assert (settled["workers"], settled["cpus_per_worker"]) == (1, 1)


def test_batch_must_be_divisible_by_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")  # as torchrun says it
    assert train(folder) == 1
    assert "divisible by resources.workers, which is 3" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "2")
    assert train(folder) == 1
    assert capsys.readouterr().err == ""  # only rank 0 prints


@pytest.mark.slow
@pytest.mark.usefixtures("without_onnx")
def test_torchrun_on_two_ranks_equals_one(folder: Path) -> None:
    changes: dict[str, Any] = {
        "train": {"precision": "fp64", "epochs": 1},
        "evaluate": {"finetune": {"epochs": 1}},
    }
    write_spec(folder, dar={"weight": 0.1}, **changes)
    assert train(folder, output="alone") == 0
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    together = command(folder, "spec.yaml", "-o", "together", launcher=launcher)
    assert together.returncode == 0, together.stderr
    assert "broadcast_buffers" not in together.stderr, "whose name torch has deprecated"
    assert together.stdout.count("evaluation of raw") == 1
    one, two = weights(folder / "alone", 3), weights(folder / "together", 3)
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-6  # float32 files
    losses = [
        [point["values"]["loss"] for point in steps_of(folder / name)]
        for name in ("alone", "together")
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-10)


def test_leave_ranks_ends_threads_of_process_group(tmp_path: Path) -> None:
    """A thread that drops a tensor at interpreter exit aborts the rank (torch 2.11 with gloo)."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    alone = threads()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    held: dict[str, Any] = {"group": dist.new_group(backend="gloo")}
    held["itself"] = held  # a reference cycle, as between a run's components
    del held
    assert threads() > alone
    leave_ranks()
    assert threads() <= alone
