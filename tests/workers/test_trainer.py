"""The trainer of an attempt: Ray Train without the helper processes that it does not need."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from ray.train import ScalingConfig
from ray.train.v2._internal.execution.scaling_policy.factory import create_scaling_policy
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from workers import trainer
from workers.trainer import LeanTrainer


def test_lean_trainer_omits_exactly_two_callbacks_with_helper_processes() -> None:
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


def test_lean_trainer_requests_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request would start an actor that no attempt ends."""
    given = []

    class Controller:
        def __init__(self, **options: Any) -> None:
            given.append(options["scaling_policy"])

        async def run(self) -> None:
            pass

        def get_result(self) -> str:
            return "result"

    monkeypatch.setattr(trainer, "TrainController", Controller)
    # It replaces what Ray's modules import.
    for module, name in ((worker_group, "SynchronizationActor"), (state, "_shutdown_sync_actor")):
        monkeypatch.setattr(module, name, getattr(module, name))
    policy = create_scaling_policy(ScalingConfig(num_workers=2))
    coordinator = Mock()
    options = {"scaling_policy": policy, "train_fn_ref": None}
    assert LeanTrainer(lambda: None)._initialize_and_run_controller(**options) == "result"
    [sent] = given
    sent._coordinator_client = coordinator
    assert sent.make_decision_for_non_running_worker_group().num_workers == 2
    sent.after_controller_start(SimpleNamespace(run_id="r"))
    sent.before_controller_abort()
    assert not coordinator.method_calls
    assert "_autoscaling_coordinator" not in vars(sent._coordinator_client)
