"""Ray's `TorchTrainer` without the helper processes that an attempt does not need."""

from typing import Any

from ray.train.torch import TorchTrainer

_UNNEEDED = frozenset({"DatasetsCallback", "PlacementGroupCleanerCallback"})


class LeanTrainer(TorchTrainer):  # type: ignore[misc]  # Ray's class has no types
    """`TorchTrainer` that starts two processes fewer, each of which imports Ray Train.

    One would distribute Ray datasets, which DASL does not use. The other would free the resources of the
    ranks after the death of Ray Train's controller; the driver ends then, and Ray frees them.

    Ray has no setting for this. The callbacks are recognized by name; if another version of Ray names them
    differently, it starts the helper processes again.
    """

    # Another version of Ray may pass arguments.
    def _create_default_callbacks(self, *args: Any, **kwargs: Any) -> list[Any]:
        callbacks = super()._create_default_callbacks(*args, **kwargs)
        return [callback for callback in callbacks if type(callback).__name__ not in _UNNEEDED]
