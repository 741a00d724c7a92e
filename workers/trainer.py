"""Ray Train without the imports and helper processes that an attempt does not need."""

from typing import Any

from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

_UNNEEDED = frozenset({"DatasetsCallback", "PlacementGroupCleanerCallback"})
_REQUESTS = ("_send_resource_request", "_maybe_send_resource_request", "_cancel_resource_request")


class LeanTrainer(DataParallelTrainer):  # type: ignore[misc]  # Ray's class has no types
    """`DataParallelTrainer` that starts three processes fewer, each of which imports Ray Train or Ray Data.

    One would distribute Ray datasets, which DASL does not use. The second would free the resources of the ranks after
    a crash of Ray Train's controller; but then the driver ends, and Ray frees them. The third would request nodes for
    the ranks from Ray's autoscaler, as the dispatcher does before it starts an attempt, and never end.

    Ray has no setting for this. The callbacks and requests are recognized by name; if another version of Ray names
    them differently, it starts the helper processes again.

    Ray's `TorchTrainer` adds only a default backend, and imports torch in the driver and the controller.
    """

    # Another version of Ray may pass arguments.
    def _create_default_callbacks(self, *args: Any, **kwargs: Any) -> list[Any]:
        callbacks = super()._create_default_callbacks(*args, **kwargs)
        return [callback for callback in callbacks if type(callback).__name__ not in _UNNEEDED]

    def _initialize_and_run_controller(self, **options: Any) -> Any:
        policy = options.get("scaling_policy")
        for name in _REQUESTS:
            if hasattr(policy, name):
                setattr(policy, name, _request_nothing)
        return super()._initialize_and_run_controller(**options)


def _request_nothing() -> None:
    pass
