"""How many operators a step sends to a GPU, about a kernel each: counted on a CPU that computes as a GPU does."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import own_run
from dasl_core.data.index import DatasetIndex
from dasl_core.data.views import rendering

# These compute nothing: they look at memory in another way, reserve it or read one number.
_FREE = {
    *(
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "diagonal",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
    ),
    *(
        "is_same_size",
        "lift_fresh",
        "_local_scalar_dense",
        "new_empty",
        "new_empty_strided",
        "permute",
    ),
    *(
        "_reshape_alias",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
    ),
    *("unbind", "unflatten", "_unsafe_view", "unsqueeze", "view", "view_as"),
}
SIMCLR = {
    "backbone": {"name": "resnet50", "image_size": 32, "stem": "standard"},
    "method": {"name": "simclr", "projection_dim": 128},
}
DINO = {
    "backbone": {"name": "vit_small_patch16_224", "image_size": 32, "stem": "standard"},
    "method": {
        "name": "dino",
        "local_crops": 8,
        "local_size": 16,
        "hidden_dim": 2048,
        "bottleneck_dim": 256,
        "out_dim": 1024,
    },
}


class Counter(TorchDispatchMode):
    """Counts the operators that compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.count += function.overloadpacket.__name__ not in _FREE
        return function(*args, **(kwargs or {}))


# Without torch.compile. Of the network alone, with loss, backward and update: 572 and 1,630.
@pytest.mark.parametrize(
    ("settings", "limit"), [(SIMCLR, 830), (DINO, 2100)], ids=["simclr", "dino"]
)
def test_a_step_sends_few_operators(
    pictures: DatasetIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    limit: int,
) -> None:
    """Views and step together, in a step that reports nothing."""
    monkeypatch.setattr(rendering, "render_on_cpu", rendering.render_batch)
    train = {"batch_size": 4, "epochs": 100, "precision": "bf16", "image_cache": "jpeg"}
    trainer = own_run.build(
        settings | {"train": train}, pictures, tmp_path, device=torch.device("cpu"), threads=1
    )
    trainer.updater.deferred, trainer.outcomes.in_flight = True, 2
    for group in trainer.updater.optimizer.param_groups:
        group["fused"] = True
    counts = []
    with closing(trainer), closing(own_run.batches(trainer, 2)) as batches:
        for batch in batches:
            with Counter() as counter:
                trainer.step(batch)
            counts.append(counter.count)
    # The first step creates the state of the optimizer.
    assert counts[1] <= limit
