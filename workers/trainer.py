"""Ray Train without the imports and helper processes that an attempt does not need."""

from typing import Any

from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

_UNNEEDED = frozenset({"DatasetsCallback", "PlacementGroupCleanerCallback"})


class LeanTrainer(DataParallelTrainer):  # type: ignore[misc]  # Ray's class has no types
    """`DataParallelTrainer` that starts two processes fewer, each of which imports Ray Train.

    One would distribute Ray datasets, which DASL does not use. The other would free the resources of the ranks after
    a crash of Ray Train's controller; but then the driver ends, and Ray frees them.

    Ray has no setting for this. The callbacks are recognized by name; if another version of Ray names them
    differently, it starts the helper processes again.

    Ray's `TorchTrainer` adds only a default backend, and imports torch in the driver and the controller.
    """

    # Another version of Ray may pass arguments.
    def _create_default_callbacks(self, *args: Any, **kwargs: Any) -> list[Any]:
        callbacks = super()._create_default_callbacks(*args, **kwargs)
        return [callback for callback in callbacks if type(callback).__name__ not in _UNNEEDED]
