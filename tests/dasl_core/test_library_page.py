"""The examples of docs/library.md run."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "library.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
# Fewer steps than a reader wants; the rest of the example is unchanged.
SHORTER = {
    "SEED, STEPS, BATCH = 0, 30, 64": "SEED, STEPS, BATCH = 0, 2, 8",
    'job = {"dataset": "images",': 'job = {"dataset": "images", "backbone": {"name": "test_resnet"},',
}


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # ONNX takes longer than the run that it is written after.
    monkeypatch.setattr("dasl_core.train.checkpointing.export_backbone", lambda *_, **__: None)
    code = EXAMPLES[number]
    for written, shorter in SHORTER.items():
        code = code.replace(written, shorter)
    exec(compile(code, f"{PAGE.name}, example {number}", "exec"), {"__name__": "example"})


def test_long_example_is_shortened() -> None:
    assert all(sum(written in code for code in EXAMPLES) == 1 for written in SHORTER)
