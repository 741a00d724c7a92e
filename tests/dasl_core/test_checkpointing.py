"""Activation checkpointing changes only memory use."""

import copy

import pytest
import torch

from dasl_core.models.backbone import build_backbone
from dasl_core.models.checkpointing import checkpoint_blocks
from dasl_core.spec import ResolvedBackbone
from dasl_core.spec.normalization import IMAGENET


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_gradients_and_running_statistics_stay(name: str) -> None:
    torch.manual_seed(0)
    size = 32
    plain = build_backbone(
        ResolvedBackbone(name=name, image_size=size, stem="small", drop_path=0.3, **dict(IMAGENET))
    ).double()
    kept = copy.deepcopy(plain)
    checkpoint_blocks(kept)
    assert kept.state_dict().keys() == plain.state_dict().keys()
    images = torch.randn(4, 3, size, size, dtype=torch.float64)
    for model in (plain, kept):
        torch.manual_seed(1)
        model(images).square().sum().backward()
    for (key, one), (_, other) in zip(
        plain.named_parameters(), kept.named_parameters(), strict=True
    ):
        torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-12, msg=key)
    for (key, buffer), (_, same) in zip(plain.named_buffers(), kept.named_buffers(), strict=True):
        assert torch.equal(buffer, same), key


def test_block_activations_are_not_stored() -> None:
    """Count the tensors that autograd saves for the backward."""

    def saved(checkpointed: bool) -> int:
        model = build_backbone(
            ResolvedBackbone(name="test_vit", image_size=64, stem="small", **dict(IMAGENET))
        )
        if checkpointed:
            checkpoint_blocks(model)
        seen: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(torch.randn(16, 3, 64, 64))
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        return sum(size for pointer, size in seen.items() if pointer not in weights)

    assert saved(True) < 0.5 * saved(False)


def test_copied_network_uses_its_own_weights() -> None:
    model = build_backbone(
        ResolvedBackbone(name="test_resnet", image_size=32, stem="small", **dict(IMAGENET))
    )
    checkpoint_blocks(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other.eval()(torch.ones(1, 3, 32, 32)).abs().max() == 0
    other.train()
    assert other(torch.ones(2, 3, 32, 32)).abs().max() == 0
