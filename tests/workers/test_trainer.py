"""The trainer of an attempt: Ray Train without the helper processes that it does not need."""

from __future__ import annotations

from ray.train.torch import TorchTrainer

from workers.trainer import LeanTrainer


def test_lean_trainer_omits_exactly_two_helper_processes() -> None:
    def callbacks(kind: type[TorchTrainer]) -> list[str]:
        return [type(each).__name__ for each in kind(lambda: None)._create_default_callbacks()]

    lean, default = callbacks(LeanTrainer), callbacks(TorchTrainer)
    omitted = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
    assert omitted <= set(default)
    assert lean == [name for name in default if name not in omitted]
