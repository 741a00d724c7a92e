"""A process that is killed while a checkpoint is written beside its training, and the run that resumes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dasl_core.data.index import DatasetIndex
from dasl_core.manifest import MANIFEST
from service.artifacts.storage import Storage
from tests.support.training_world import Recorder, image_folder, ingest, resolved, run, skip_plots
from workers import artifacts

STEPS = 3  # of an epoch
TRAINING = """
import sys, threading
from pathlib import Path
from dasl_core.data.index import DatasetIndex
from tests.support.training_world import Recorder, resolved, run
from workers import artifacts

index, folder, uri = DatasetIndex.load(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]

class Reporter(Recorder):
    writing = threading.Event()

    def checkpoint(self, source, step, *arguments):
        chunks = 0
        def on_chunk():
            nonlocal chunks
            chunks += 1
            if step == 6 and chunks == 2:
                self.writing.set()
                threading.Event().wait()
        artifacts.upload_checkpoint(source, f"{uri}/step-{step}", {"step": step}, on_chunk)

    def desired(self):
        answer = super().desired()
        if self._started_steps == 8:  # the second step beside the checkpoint of step 6
            assert self.writing.wait(120)
            print("in the middle", flush=True)
            sys.stdin.read()
        return answer

run(resolved(index), index, folder / "cache", Reporter(folder / "out"))
"""


@pytest.mark.slow
def test_training_resumes_from_the_checkpoint_before_the_one_that_was_being_written(
    tmp_path: Path, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_plots(monkeypatch)
    index = ingest(image_folder(tmp_path / "images"))
    index.save(tmp_path / "index")
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, tmp_path / "index", tmp_path, s3_root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.kill()
    storage = Storage(s3_root)
    assert MANIFEST not in storage.file_sizes(f"{s3_root}/step-6")
    assert MANIFEST in storage.file_sizes(f"{s3_root}/step-3")
    back = tmp_path / "step-3"
    back.mkdir()
    for name in storage.file_sizes(f"{s3_root}/step-3"):
        artifacts.fetch(f"{s3_root}/step-3/{name}", back / name)
    assert json.loads((back / MANIFEST).read_text())["step"] == STEPS

    undisturbed, resumed = curve(index, tmp_path), curve(index, tmp_path, back)
    assert len(undisturbed) == 3 * STEPS
    assert resumed == pytest.approx(undisturbed[STEPS:], rel=1e-6)


def curve(index: DatasetIndex, folder: Path, resume: Path | None = None) -> list[Any]:
    """Train, from the start or a checkpoint, and return the losses."""
    reporter = Recorder(folder / ("resumed" if resume else "undisturbed"))
    assert run(resolved(index), index, folder / "cache", reporter, resume) == "succeeded"
    return reporter.curve()
