"""The trainer of an attempt: Ray Train without the helper processes that it does not need."""

from __future__ import annotations

import pytest
from ray.train.torch import TorchTrainer

from workers.trainer import LeanTrainer


def test_lean_trainer_omits_exactly_two_helper_processes() -> None:
    def callbacks(kind: type[TorchTrainer]) -> list[str]:
        return [type(each).__name__ for each in kind(lambda: None)._create_default_callbacks()]

    lean, default = callbacks(LeanTrainer), callbacks(TorchTrainer)
    omitted = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
    assert omitted <= set(default)
    assert lean == [name for name in default if name not in omitted]


def test_lean_trainer_passes_on_arguments_of_another_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def callbacks(trainer: TorchTrainer, context: str, *, strict: bool) -> list[object]:
        return [context, strict]

    monkeypatch.setattr(TorchTrainer, "_create_default_callbacks", callbacks)
    lean = LeanTrainer(lambda: None)
    assert lean._create_default_callbacks("context", strict=True) == ["context", True]
