"""Ray's `TorchTrainer` without the helper processes that an attempt does not need."""

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback


class LeanTrainer(TorchTrainer):  # type: ignore[misc]  # Ray's class has no types
    """`TorchTrainer` that starts two processes fewer, each of which imports Ray Train.

    One would distribute Ray datasets, which DASL does not use. The other would free the resources of the
    ranks after the death of Ray Train's controller; the driver ends then, and Ray frees them.
    """

    def _create_default_callbacks(self) -> list[Any]:
        unneeded = (DatasetsCallback, PlacementGroupCleanerCallback)
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, unneeded)]
