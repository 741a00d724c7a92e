"""Files of a user stay as they are, whatever command writes to their folder, unless `--force` asks for it."""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from dasl_core.outputs import own_folder
from service.client.models import ModelRun, Preview
from service.wire.checkpoints import ArtifactView, CheckpointView
from service.wire.datasets import DatasetView
from service.wire.experiments import ExperimentView, VariantCurve
from service.wire.jobs import JobView
from tests.service.client.test_cli_export import write_checkpoint
from tests.support.answers import answer_of
from tests.support.command_line import run
from tests.support.scripted_server import Answer, Request, answer_json, scripted

ROOT = Path(__file__).parents[3]
MINE = b"The file of a user."
THEIRS = b"What the command writes."
ID = 26 * "0"
# Command, and the file of the user in its way: one that it would replace, or remove, or leave among its own.
LOCAL = {
    "init": ("init images -o spec.yaml", "spec.yaml"),
    "preview": ("preview job.yaml --data images -o out --images 1", "out/sheet.png"),
    "preview among others": ("preview job.yaml --data images -o out --images 1", "out/a.txt"),
    "train": ("train job.yaml --data images -o out", "out/report.html"),
    "train --resume": ("train job.yaml --data images -o out --resume", "out/metrics.jsonl"),
    "embed": ("embed checkpoint --data images -o out.parquet", "out.parquet"),
    "export": ("export checkpoint -f torch-export -o out.pt2", "out.pt2"),
    "export to a folder": ("export checkpoint -f hf -o .", "README.md"),
}
REMOTE = {
    "download": (f"download ckpt_{ID} -o .", "README.md"),
    "artifacts": (f"artifacts job_{ID} -o .", "README.md"),
    "embed there": (f"embed ckpt_{ID} --dataset birds -o out.parquet", "out.parquet"),
    "export there": (f"export ckpt_{ID} -f onnx -o .", "README.md"),
    "datasets preview": (f"datasets preview ds_{ID} --spec job.yaml -o .", "README.md"),
    "contact-sheet": (f"datasets contact-sheet ds_{ID} -o sheet.jpg", "sheet.jpg"),
    "plot": (f"experiments plot exp_{ID} --metric loss -o loss.png", "loss.png"),
}
FORCED = [*REMOTE, "init", "preview", "preview among others", "embed", "export to a folder"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with images, a spec and a checkpoint, and a service that has one of everything."""
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(40):
        pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    spec = {"dataset": "birds", "backbone": {"name": "test_vit", "image_size": 32}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    write_checkpoint(tmp_path / "checkpoint", "test_vit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    with scripted(answer) as server:
        monkeypatch.setenv("DASL_URL", server.url)
        yield


def answer(request: Request) -> Answer:
    """Answer with a file README.md for whatever has files."""
    content = {"size": len(THEIRS), "sha256": hashlib.sha256(THEIRS).hexdigest()}
    file = {"name": "README.md", "content_type": "text/markdown", **content}
    points = {name: [1] for name in ("step", "n", "mean", "std", "min", "max")}
    curve = answer_of(VariantCurve, variant="a", **points)
    done = {"state": "succeeded", "files": [file]}
    answers: dict[str, object] = {
        f"/v1/checkpoints/ckpt_{ID}": answer_of(CheckpointView, files=[file]),
        f"/v1/jobs/job_{ID}": answer_of(JobView, id=f"job_{ID}"),
        f"/v1/jobs/job_{ID}/artifacts": {"data": [answer_of(ArtifactView, **file)]},
        f"/v1/checkpoints/ckpt_{ID}/embeddings": answer_of(ModelRun, id="run_1", **done),
        f"/v1/checkpoints/ckpt_{ID}/exports": answer_of(ModelRun, id="run_1", **done),
        f"/v1/datasets/ds_{ID}": answer_of(DatasetView, id=f"ds_{ID}"),
        f"/v1/datasets/ds_{ID}/previews": answer_of(Preview, id="prev_1", **done),
        "/v1/previews/prev_1": answer_of(Preview, id="prev_1", **done),
        f"/v1/experiments/exp_{ID}": answer_of(ExperimentView, id=f"exp_{ID}", name="a"),
        f"/v1/experiments/exp_{ID}/results": {
            **answer_of(ExperimentView)["results"],
            "metric": "loss",
        },
        f"/v1/experiments/exp_{ID}/curves": {"variants": [curve]},
    }
    path = request.path.partition("?")[0]
    return answer_json(answers[path]) if path in answers else Answer(THEIRS)


def test_every_command_with_an_output_is_tested_and_has_the_option() -> None:
    surface = (ROOT / "tests" / "fixtures" / "surface.txt").read_text()
    writing, forced = (
        {*re.findall(rf"^dasl (.+) {option}", surface, re.M)} for option in ("--output", "--force")
    )
    assert writing == forced
    commands = [command for command, _ in (LOCAL | REMOTE).values()]
    assert [name for name in writing if not any(each.startswith(name) for each in commands)] == []


@pytest.mark.parametrize("case", [*LOCAL, *REMOTE])
def test_command_leaves_a_file_of_the_user(case: str) -> None:
    command, name = (LOCAL | REMOTE)[case]
    file = Path(name)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(MINE)
    refused = run(*command.split(), code=1)
    assert "--force" in refused.stderr
    assert file.read_bytes() == MINE
    assert [path.name for path in file.parent.glob("*.partial")] == []
    if case in FORCED:
        run(*command.split(), "--force")
        assert (file.read_bytes() == MINE) == (case == "preview among others")


@pytest.mark.parametrize("case", sorted({*FORCED} - {"embed", "plot", "preview among others"}))
def test_command_may_be_repeated(case: str) -> None:
    command, _ = (LOCAL | REMOTE)[case]
    run(*command.split())
    run(*command.split())


@pytest.mark.parametrize("case", ["artifacts", "datasets preview"])
def test_folder_that_a_command_made_is_brought_up_to_date(case: str) -> None:
    command = REMOTE[case][0].replace("-o .", "-o runs").split()
    run(*command)
    Path("runs/README.md").write_bytes(b"of an earlier call")
    run(*command)
    assert Path("runs/README.md").read_bytes() == THEIRS


def test_folder_of_an_interrupted_command_is_its_own() -> None:
    with suppress(KeyboardInterrupt), own_folder(Path("runs"), ".mark", force=False):
        Path("runs").mkdir()
        raise KeyboardInterrupt
    with own_folder(Path("runs"), ".mark", force=False) as may_replace:
        assert may_replace


def test_make_clean_keeps_trained_models() -> None:
    shutil.copy(ROOT / "Makefile", "Makefile")
    kept = [Path("build/train/checkpoints"), Path("build/birds"), Path("build/demo")]
    for folder in (*kept, Path("build/site"), Path("build/core-2.11"), Path(".venv")):
        folder.mkdir(parents=True)
    subprocess.run(["make", "-s", "clean"], check=True)
    assert all(folder.exists() for folder in kept)
    assert sorted(path.name for path in Path("build").iterdir()) == ["birds", "demo", "train"]
