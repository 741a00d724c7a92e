"""Ray Train without the imports and helper processes that an attempt does not need."""

import asyncio
from typing import Any

from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

_UNNEEDED = frozenset({"DatasetsCallback", "PlacementGroupCleanerCallback"})
_REQUESTS = ("_send_resource_request", "_maybe_send_resource_request", "_cancel_resource_request")


class LeanTrainer(DataParallelTrainer):  # type: ignore[misc]  # Ray's class has no types
    """`DataParallelTrainer` that starts five processes fewer, each of which imports Ray Train or Ray Data.

    One would distribute Ray datasets, which DASL does not use. The second would free the resources of the ranks after
    a crash of Ray Train's controller; but then the driver ends, and Ray frees them. The third would request nodes for
    the ranks from Ray's autoscaler, as the dispatcher does before it starts an attempt, and never end. The fourth is
    the controller, which runs in the process of the caller, an actor. The fifth is the barrier of `ray.train.report`,
    which no rank calls.

    Ray has no setting for this. The callbacks and requests are recognized by name.
    Ray's `TorchTrainer` adds only a default backend, and imports torch in the controller.
    """

    # Another version of Ray may pass arguments.
    def _create_default_callbacks(self, *args: Any, **kwargs: Any) -> list[Any]:
        callbacks = super()._create_default_callbacks(*args, **kwargs)
        return [callback for callback in callbacks if type(callback).__name__ not in _UNNEEDED]

    def _initialize_and_run_controller(self, **options: Any) -> Any:
        policy = options.get("scaling_policy")
        for name in _REQUESTS:
            if hasattr(policy, name):
                setattr(policy, name, _nothing)
        worker_group.SynchronizationActor = NoBarrier
        state._shutdown_sync_actor = _nothing
        controller = TrainController(**options)
        asyncio.run(controller.run())
        return controller.get_result()


class NoBarrier:
    """In place of an actor of Ray's class `SynchronizationActor`, and of that class."""

    @classmethod
    def options(cls, **_options: Any) -> type["NoBarrier"]:
        return cls

    @classmethod
    def remote(cls, **_arguments: Any) -> "NoBarrier":
        return cls()


def _nothing(*_arguments: Any) -> None:
    pass
