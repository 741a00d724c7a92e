"""Batch normalization over all ranks equals torch's over the concatenated batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from dasl_core.models.batchnorm import average_statistics, synchronize_batchnorm
from tests.support.gloo_pool import GlooPool
from tests.support.gradients import gradient

CPU = torch.device("cpu")

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "1d": lambda: nn.BatchNorm1d(3),
    "2d": lambda: nn.BatchNorm2d(3, momentum=0.3, eps=1e-3),
    "2d-not-affine": lambda: nn.BatchNorm2d(3, affine=False),
    "2d-untracked": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    # Unlike ReLU, this activation changes the result if it is applied twice.
    "act": lambda: BatchNormAct2d(3, act_layer=nn.SiLU),
}


def batch(kind: str) -> np.ndarray:
    shape = (8, 3) if kind == "1d" else (8, 3, 2, 5)
    # The mean is large compared with the spread: E[x^2] - E[x]^2 would cancel.
    return np.random.default_rng(5).normal(loc=1e4, size=shape)


def two_steps_and_an_evaluation(kind: str) -> dict[str, Any]:
    """Apply a layer to this rank's share, twice in training mode, then in eval mode."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    layer = LAYERS[kind]().double()
    names = list(layer.state_dict())
    synchronize_batchnorm(layer, CPU)
    assert list(layer.state_dict()) == names
    if list(layer.parameters()):
        with torch.no_grad():
            layer.get_parameter("weight").copy_(torch.tensor([0.5, 1.0, 2.0]))
            layer.get_parameter("bias").copy_(torch.tensor([0.1, 0.0, -0.1]))
    values = torch.from_numpy(batch(kind))
    weights = torch.from_numpy(np.random.default_rng(6).normal(size=values.shape))
    own = values.chunk(world)[rank].clone().requires_grad_()
    layer(own * 0.5)
    trained = layer(own)
    (trained * weights.chunk(world)[rank]).sum().backward()
    layer.eval()
    evaluated = layer(own)
    return {
        "trained": trained.detach().numpy(),
        "evaluated": evaluated.detach().numpy(),
        "input_gradient": gradient(own).numpy(),
        "parameter_gradients": [gradient(p).numpy() for p in layer.parameters()],
        "buffers": {name: buffer.numpy() for name, buffer in layer.named_buffers()},
    }


@pytest.mark.parametrize("kind", LAYERS)
def test_equals_torch_on_the_whole_batch(pool: GlooPool, kind: str) -> None:
    alone = two_steps_and_an_evaluation(kind)  # one process: torch's own forward
    parts = pool.call(4, two_steps_and_an_evaluation, kind)
    names = ["trained", "input_gradient"]
    if kind != "2d-untracked":  # without running statistics, eval mode uses those of the share
        names.append("evaluated")
    for name in names:
        together = np.concatenate([part[name] for part in parts])
        # Evaluated values are thousands.
        np.testing.assert_allclose(together, alone[name], rtol=1e-12, atol=1e-10, err_msg=name)
    for index, slope in enumerate(alone["parameter_gradients"]):
        total = sum(part["parameter_gradients"][index] for part in parts)
        np.testing.assert_allclose(total, slope, rtol=0, atol=1e-10)
    for part in parts:
        assert part["buffers"].keys() == alone["buffers"].keys()
        for name, buffer in alone["buffers"].items():
            np.testing.assert_allclose(part["buffers"][name], buffer, rtol=1e-12, err_msg=name)


def averaged() -> dict[str, np.ndarray]:
    """Statistics of this rank's share, then their means over ranks; a layer in eval mode keeps its own."""
    layers = nn.ModuleList([nn.BatchNorm1d(3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)]).double()
    layers[2].eval()
    own = torch.from_numpy(batch("1d")).chunk(dist.get_world_size())[dist.get_rank()]
    for layer in layers:
        layer(own)
    with torch.no_grad():
        layers[2].get_buffer("running_mean").fill_(dist.get_rank())
    average_statistics(layers)
    return {name: buffer.numpy() for name, buffer in layers.named_buffers()}


def test_running_statistics_are_averaged_over_ranks(pool: GlooPool) -> None:
    shares = np.split(batch("1d"), 2)
    first, second = pool.call(2, averaged)
    for layer in ("0", "1"):
        for name, of_shares, start in (
            ("mean", [share.mean(axis=0) for share in shares], 0),
            ("var", [share.var(axis=0, ddof=1) for share in shares], 1),
        ):
            expected = 0.9 * start + 0.1 * np.mean(of_shares, axis=0)
            for part in (first, second):
                np.testing.assert_allclose(part[f"{layer}.running_{name}"], expected, rtol=1e-12)
    assert (first["2.running_mean"] == 0).all()
    assert (second["2.running_mean"] == 1).all()


def in_bfloat16() -> tuple[str, float]:
    layer = synchronize_batchnorm(nn.BatchNorm2d(3), CPU)
    own = torch.from_numpy(batch("2d")).float().chunk(2)[dist.get_rank()] - 1e4
    result = layer(own.bfloat16())
    return str(result.dtype), float(result.float().mean().abs())


def test_output_has_input_precision(pool: GlooPool) -> None:
    for dtype, mean in pool.call(2, in_bfloat16):
        assert dtype == "torch.bfloat16"
        assert mean < 0.5


def test_one_process_uses_torch_forward() -> None:
    values = torch.from_numpy(batch("2d"))
    plain, synchronised = (nn.BatchNorm2d(3).double() for _ in range(2))
    synchronize_batchnorm(synchronised, CPU)
    assert torch.equal(plain(values), synchronised(values))
    assert torch.equal(plain.eval()(values), synchronised.eval()(values))


@pytest.mark.parametrize("name", ["test_resnet", "resnet10t"])
def test_conversion_keeps_parameter_names_and_outputs(name: str) -> None:
    network = timm.create_model(name, num_classes=0).eval()
    names = list(network.state_dict())
    images = torch.rand(2, 3, 32, 32)
    before: Tensor = network(images)
    assert synchronize_batchnorm(synchronize_batchnorm(network, CPU), CPU) is network
    assert list(network.state_dict()) == names
    assert torch.equal(network(images), before)


@pytest.mark.parametrize("name", ["test_resnet", "resnet10t"])
def test_gpu_uses_torch_sync_batchnorm_with_same_parameters(name: str) -> None:
    network = timm.create_model(name, num_classes=0)
    names, parameters = list(network.state_dict()), list(network.parameters())
    converted = synchronize_batchnorm(network, torch.device("cuda"))
    assert any(isinstance(layer, nn.SyncBatchNorm) for layer in converted.modules())
    assert not any(type(layer) is nn.BatchNorm2d for layer in converted.modules())
    assert list(converted.state_dict()) == names
    assert all(a is b for a, b in zip(converted.parameters(), parameters, strict=True))
