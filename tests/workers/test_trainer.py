"""The trainer of an attempt: Ray Train without the helper processes that it does not need."""

from __future__ import annotations

import pytest
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from workers.trainer import LeanTrainer


def test_lean_trainer_omits_exactly_two_helper_processes() -> None:
    def callbacks(kind: type[DataParallelTrainer]) -> list[str]:
        return [type(each).__name__ for each in kind(lambda: None)._create_default_callbacks()]

    lean, default = callbacks(LeanTrainer), callbacks(DataParallelTrainer)
    omitted = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
    assert omitted <= set(default)
    assert lean == [name for name in default if name not in omitted]


def test_lean_trainer_passes_on_arguments_of_another_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def callbacks(trainer: DataParallelTrainer, context: str, *, strict: bool) -> list[object]:
        return [context, strict]

    monkeypatch.setattr(DataParallelTrainer, "_create_default_callbacks", callbacks)
    lean = LeanTrainer(lambda: None)
    assert lean._create_default_callbacks("context", strict=True) == ["context", True]
