"""The notebook of examples/ on a real service: its cells run in order, in one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Images
from tests.support.running_service import Served

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first-job.ipynb"


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def run(values: dict[str, Any]) -> dict[str, Any]:
    """Run the cells, with other values than those of the cell `parameters`; return their variables."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells()):
        code = compile("".join(cell["source"]), f"{NOTEBOOK.name}, code cell {number}", "exec")
        exec(code, variables)
        if "parameters" in cell["metadata"].get("tags", ()):
            variables |= values
    return variables


def test_notebook_is_stored_without_outputs() -> None:
    assert [cell["execution_count"] for cell in code_cells() if cell["execution_count"]] == []
    assert [cell["outputs"] for cell in code_cells() if cell["outputs"]] == []


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.timeout(1800)
def test_notebook_runs(
    served: Served,
    images: Images,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DASL_URL", served.url)
    monkeypatch.setenv("DASL_TOKEN", served.token)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    settings = {
        "backbone": {"name": "test_resnet", "image_size": 16},
        "train": {"epochs": 1, "batch_size": 16},
        "resources": {"cpus_per_worker": 1, "gpus_per_worker": 0},
    }
    variables = run({"IMAGES": images.root, "NAME": "notebook", "SETTINGS": settings})

    assert variables["job"].status == "succeeded"
    assert set(variables["recall"]) == {"raw", "untrained", "backbone"}
    assert all(0 <= each <= 1 for each in variables["recall"].values())
    assert len(variables["table"]) == images.usable
    assert len(variables["nearest"]) == 5
    assert variables["key"] not in [each.key for each in variables["nearest"]]
    losses = variables["metrics"].values["loss"]
    assert len(losses) == len(variables["metrics"].step) > 1
    printed = capsys.readouterr().out
    for name, reason in images.broken.items():
        assert f"skipped {name}: " in printed
        assert reason in printed
