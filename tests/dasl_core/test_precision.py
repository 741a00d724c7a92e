"""Mixed precision: what torch cannot compute in it is computed in float32."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from dasl_core.data.index import DatasetIndex
from dasl_core.train.precision import autocast, define_gradients
from tests.support.training_world import Recorder, resolved, run

CPU = torch.device("cpu")


def fill_free_memory_with_nan() -> None:
    """Write NaN into memory that the next tensors get, so that what is left uninitialized is seen."""
    sizes = [2**power + more for power in range(4, 18) for more in (0, 16, 100)]
    kept = [torch.full((size,), torch.nan) for size in sizes for _ in range(4)]
    kept.clear()


KERNELS, STRIDES, SIDES = (1, 3, 7), (1, 2, 4), (1, 2, 3, 5)


@pytest.mark.parametrize(
    ("kernel", "stride", "side"),
    # Each stride with each side, and each kernel with each of both.
    [
        (KERNELS[(row + column) % 3], stride, side)
        for row, stride in enumerate(STRIDES)
        for column, side in enumerate(SIDES)
    ],
)
def test_bf16_gradient_of_a_convolution_is_right(kernel: int, stride: int, side: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, kernel, stride, kernel // 2, bias=False)
    images = torch.randn(4, 16, side, side)
    exact = torch.autograd.grad(layer(images).square().sum(), layer.weight)[0]
    define_gradients(layer, "bf16", CPU)
    fill_free_memory_with_nan()
    with autocast("bf16", CPU):
        output = copy.deepcopy(layer)(images)
        assert output.dtype == (torch.float32 if kernel > 1 and side < stride else torch.bfloat16)
        output = layer(images)
    fill_free_memory_with_nan()
    gradient = torch.autograd.grad(output.float().square().sum(), layer.weight)[0]
    assert (gradient - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp64"])
def test_other_precisions_change_nothing(precision: str) -> None:
    layer = nn.Conv2d(2, 2, 3, 2, 1)
    define_gradients(layer, precision, CPU)  # type: ignore[arg-type]  # the parameter is a str
    assert "forward" not in vars(layer)


@pytest.mark.usefixtures("without_plots")
def test_run_whose_last_stages_see_one_pixel(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        reporter = Recorder(tmp_path / precision)
        spec = resolved(pictures, train={"precision": precision, "epochs": 1})
        assert run(spec, pictures, cache, reporter) == "succeeded"
        losses.append(reporter.curve())
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.02)
    assert all(map(math.isfinite, losses[1]))
