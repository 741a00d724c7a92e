"""SwAV against lightly's codes and loss; its queue, its prototypes, its settings."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import SwaVLoss
from lightly.loss.swav_loss import sinkhorn as lightly_sinkhorn
from torch import Tensor, nn

from dasl_core.distributed import all_ranks
from dasl_core.methods import Method, Step
from dasl_core.methods.swav import SwAV, sinkhorn, swapped_prediction
from dasl_core.spec import DatasetFacts, JobSpec, resolve
from dasl_core.spec.methods.swav import ResolvedSwAV
from tests.support.device_waits import DeviceWaits
from tests.support.gloo_pool import GlooPool
from tests.support.methods import build_inputs
from tests.support.setting_effects import (
    HEAD,
    LOCAL_CROPS,
    SAMPLES,
    History,
    SettingEffects,
    effects,
    other,
)


def cosines(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1


def small(**changes: Any) -> SwAV:
    """A SwAV of 5 prototypes for images (3, 2, 2) and smaller ones of the same width."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 6))
    values: dict[str, Any] = {
        "hidden_dim": 7,
        "projection_dim": 4,
        "prototypes": 5,
        "local_size": 8,
        "local_scale": (0.05, 0.14),
        "queue_length": 0,
        "queue_start_epoch": 0,
    }
    return SwAV(ResolvedSwAV(**values | changes), build_inputs(backbone, 6))


def outputs_of(method: SwAV, samples: int = 6, seed: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    views = [torch.randn(samples, 3, size, size) for size in (4, 4, 2, 2)]
    outputs: dict[str, Tensor] = method(views)
    return outputs


def step_at(index: int, samples: int = 6) -> Step:
    return Step(index, 100, 4, torch.arange(samples), group=all_ranks())


# --- codes


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 9),
    st.integers(2, 7),
    st.floats(0.03, 1),
    st.integers(1, 5),
    st.integers(0, 10**6),
)
def test_codes_equal_lightlys(
    samples: int, prototypes: int, epsilon: float, iterations: int, seed: int
) -> None:
    scores = cosines(samples, prototypes, seed=seed)
    expected = lightly_sinkhorn(scores, iterations, epsilon)
    torch.testing.assert_close(sinkhorn(scores, epsilon, iterations), expected)


def test_sharpest_codes_are_finite_in_float32() -> None:
    # All samples at one prototype, and opposite to another: the state one step before a collapse.
    scores = torch.tensor([1.0, -1.0, 0.0]).repeat(512, 1)
    scores[0] = torch.tensor([-1.0, -1.0, 1.0])
    codes = sinkhorn(scores, 0.03, 3)
    assert codes.isfinite().all()
    torch.testing.assert_close(
        codes.double(), sinkhorn(scores.double(), 0.03, 3), rtol=1e-4, atol=0
    )


def codes_of_share(scores: np.ndarray, cuts: list[int]) -> np.ndarray:
    own = torch.from_numpy(scores).tensor_split(cuts)[dist.get_rank()]
    return sinkhorn(own, 0.05, 3, all_ranks()).numpy()


def test_codes_on_uneven_ranks_equal_codes_of_whole_batch(pool: GlooPool) -> None:
    scores = cosines(11, 4)
    expected = sinkhorn(scores, 0.05, 3)
    parts = pool.call(4, codes_of_share, scores.numpy(), [2, 3, 7])
    np.testing.assert_allclose(np.concatenate(parts), expected.numpy(), rtol=0, atol=1e-12)
    # Sums over only the rank's own samples give other codes.
    alone = torch.cat([sinkhorn(part, 0.05, 3) for part in scores.tensor_split([2, 3, 7])])
    assert (alone - expected).abs().max() > 0.1


# --- loss


@pytest.mark.parametrize("queued", [0, 7])
@pytest.mark.parametrize("local_crops", [0, 3])
def test_loss_and_gradient_equal_lightlys(local_crops: int, queued: int) -> None:
    scores = cosines(2 + local_crops, 6, 5).requires_grad_()
    queue = cosines(2, queued, 5, seed=1)
    theirs = SwaVLoss()(
        list(scores[:2]), list(scores[2:]), list(queue) if queued else None
    ).squeeze()
    codes = sinkhorn(torch.cat([scores[:2], queue], dim=1), 0.05, 3)[:, :6]
    ours = swapped_prediction(scores, codes, 0.1)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (ours, theirs)))


def test_no_gradient_flows_through_codes() -> None:
    method = small(epsilon=1.0)
    outputs = outputs_of(method)
    scores = outputs["scores"].detach().requires_grad_()
    (gradient,) = torch.autograd.grad(method.loss(outputs | {"scores": scores}, step_at(0)), scores)
    codes = sinkhorn(scores[:2].detach(), 1.0, 3)
    # Of a log-softmax with codes held fixed: the sum over prototypes is 0 for each view and sample.
    assert gradient.sum(dim=-1).abs().max() < 1e-6
    again = swapped_prediction(scores, codes, 0.1)
    torch.testing.assert_close(torch.autograd.grad(again, scores)[0], gradient)


# --- outputs


def test_outputs_have_raw_projections_scores_of_all_views_and_assignments() -> None:
    method = small()
    outputs = outputs_of(method)
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        "embeddings": (2, 6, 4),
        "scores": (4, 6, 5),
        "assignments": (1, 6),
    }
    assert (outputs["embeddings"].norm(dim=-1) - 1).abs().max() > 1e-2
    directions = F.normalize(outputs["embeddings"], dim=-1)
    expected = directions @ method.prototypes.weight.T
    torch.testing.assert_close(outputs["scores"][:2], expected)
    assert outputs["assignments"][0].equal(expected.mean(dim=0).argmax(dim=1))


def test_scores_are_float32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = outputs_of(small())
    assert outputs["embeddings"].dtype == torch.bfloat16
    assert outputs["scores"].dtype == torch.float32
    assert outputs["scores"].unique().numel() > 100  # bfloat16 would have rounded many alike


def test_metrics_tell_even_use_from_collapse() -> None:
    method = small()
    for scores, entropy, usage in (
        (torch.zeros(4, 10, 5), math.log(5), math.log(5)),
        (20 * torch.eye(5).repeat(2, 1).expand(4, 10, 5), 0.0, math.log(5)),
        (20 * torch.eye(5)[0].expand(4, 10, 5), 0.0, 0.0),
    ):
        figures = method.metrics({"scores": scores}, step_at(0, 10))
        assert figures["output_entropy"].item() == pytest.approx(entropy, abs=1e-5)
        assert figures["output_usage"].item() == pytest.approx(usage, abs=1e-5)
        assert figures["num_outputs"].item() == 5


# --- prototypes


def test_prototypes_are_unit_vectors_before_every_forward() -> None:
    method = small()
    ones = torch.ones(5)
    torch.testing.assert_close(method.prototypes.weight.norm(dim=1), ones)
    before = method.prototypes.weight.detach().clone()
    with torch.no_grad():
        method.prototypes.weight.mul_(3.0)
    method.after_update(step_at(0))
    torch.testing.assert_close(method.prototypes.weight.detach(), before)


def test_prototypes_are_frozen_in_first_epochs() -> None:
    method = small(freeze_prototypes_epochs=2)  # of four steps each
    for index in (0, 7, 8):
        outputs = outputs_of(method)
        method.loss(outputs, step_at(index)).backward()
        method.before_update(step_at(index))
        assert (method.prototypes.weight.grad is None) == (index < 8)
        assert method.backbone.get_parameter("2.weight").grad is not None
        method.zero_grad()


# --- queue


def test_queue_contains_newest_normalized_projections_per_view() -> None:
    method = small(queue_length=10)
    expected = torch.zeros(2, 10, 4)
    for index in range(3):
        outputs = outputs_of(method, seed=index)
        assert method.queue.equal(expected)  # the forward changed nothing
        method.loss(outputs, step_at(index))
        newest = F.normalize(outputs["embeddings"].detach(), dim=-1)
        expected = torch.cat([newest, expected], dim=1)[:, :10]
        torch.testing.assert_close(method.queue, expected)
    assert "queue" in method.state_dict()


def test_queue_is_used_once_full_and_after_its_start_epoch() -> None:
    for index, filled, queue_start_epoch, used in (
        (2, 11, 0, False),  # as after a skipped step
        (2, 12, 0, True),
        (6, 12, 2, False),
        (8, 12, 2, True),
    ):
        method = small(queue_length=12, queue_start_epoch=queue_start_epoch)
        torch.manual_seed(5)
        method.queue[:, :filled] = F.normalize(torch.randn(2, filled, 4), dim=-1)
        queue = method.queue.clone()
        outputs = outputs_of(method)
        crops = [list(outputs["scores"][:2]), list(outputs["scores"][2:])]
        without = SwaVLoss()(*crops).squeeze()
        within = SwaVLoss()(*crops, list(queue @ method.prototypes.weight.T)).squeeze()
        assert (without - within).abs() > 1e-3
        loss = method.loss(outputs, step_at(index))
        torch.testing.assert_close(loss, within if used else without)


def reads_of_queue(method: SwAV, indices: range, seed: int) -> list[int]:
    """Steps whose loss reads the queue on the host."""
    reads = []
    for index in indices:
        outputs = outputs_of(method, seed=seed + index)
        with DeviceWaits(method.buffers()) as waits:
            method.loss(outputs, step_at(index))
        reads += [index] * len(waits.found)
    return reads


def test_queue_is_read_only_when_it_may_be_full() -> None:
    method = small(queue_length=14)  # of batches of 6: full after three
    assert reads_of_queue(method, range(6), 0) == [0, 3]
    method.queue.copy_(torch.cat([method.queue[:, 6:], torch.zeros(2, 6, 4)], dim=1))
    resumed = small(queue_length=14)
    reads_of_queue(resumed, range(4), 0)
    resumed.load_state_dict(method.state_dict())  # with 8 images
    assert reads_of_queue(resumed, range(4, 8), 0) == [4, 5]


def test_queue_that_a_skipped_step_did_not_fill_is_read_again() -> None:
    method = small(queue_length=12)
    reads_of_queue(method, range(1), 0)
    before = method.queue.clone()
    reads_of_queue(method, range(1, 2), 0)
    method.queue.copy_(before)  # as after a skipped step
    assert reads_of_queue(method, range(2, 5), 0) == [2, 3]


def test_queue_keeps_first_samples_of_larger_batch() -> None:
    method = small(queue_length=4)
    outputs = outputs_of(method)
    method.loss(outputs, step_at(0))
    expected = F.normalize(outputs["embeddings"].detach(), dim=-1)[:, :4]
    torch.testing.assert_close(method.queue, expected)


def losses_with_queue(length: int) -> tuple[list[float], np.ndarray]:
    """Three losses on the same global batches of 8, each rank with its share, and the queue."""
    method = small(queue_length=length).double()
    losses = []
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    for index in range(3):
        embeddings = cosines(2, 8, 4, seed=index)
        scores = F.normalize(embeddings, dim=-1) @ method.prototypes.weight.detach().T
        own = {"embeddings": embeddings, "scores": scores}
        own = {name: value.chunk(world, dim=1)[rank] for name, value in own.items()}
        losses.append(method.loss(own, step_at(index, 8)).item())
    return losses, method.queue.numpy()


@pytest.mark.parametrize("length", [8, 7])  # 7 gives ranks parts of different lengths
def test_ranks_share_one_queue(pool: GlooPool, length: int) -> None:
    losses, queue = losses_with_queue(length)
    results = pool.call(4, losses_with_queue, length)
    mean = np.mean([own for own, _ in results], axis=0)
    np.testing.assert_allclose(mean, losses, rtol=0, atol=1e-12)
    for _, own in results:
        np.testing.assert_allclose(own, queue, rtol=0, atol=1e-12)


# --- settings


def resolved(images: int, batch: int, epochs: int = 200, **method: Any) -> Any:
    spec = JobSpec.model_validate(
        {
            "dataset": "x",
            "method": {"name": "swav"} | method,
            "backbone": {"image_size": 224},
            "train": {"batch_size": batch, "epochs": epochs},
            "evaluate": {"dataset": "y"},
        }
    )
    facts = DatasetFacts(num_images=images, num_classes=None, median_size=224)
    return resolve(spec, facts).method


def test_sizes_follow_dataset() -> None:
    imagenet = resolved(1_281_167, 256)
    # The paper at batch 256: 3,000 prototypes, a queue of 3,840 from epoch 15 on, crops of 96.
    assert (imagenet.prototypes, imagenet.queue_length) == (2830, 3584)
    assert (imagenet.queue_start_epoch, imagenet.local_size) == (15, 96)
    assert imagenet.hidden_dim == 512
    assert resolved(1_281_167, 4096).queue_length == 0  # as in the paper
    assert resolved(50_000, 256, 10).queue_start_epoch == 1
    given = resolved(1000, 64, prototypes=5, queue_length=3, queue_start_epoch=9)
    assert (given.prototypes, given.queue_length, given.queue_start_epoch) == (5, 3, 9)


def test_loss_errors_name_wrong_argument() -> None:
    scores = torch.zeros(2, 4, 5)
    for epsilon in (0.0, -0.05, float("nan")):
        with pytest.raises(ValueError, match="epsilon must be a finite number above 0"):
            sinkhorn(scores, epsilon, 3)
    with pytest.raises(ValueError, match="iterations must be at least 1; given 0"):
        sinkhorn(scores, 0.05, 0)
    with pytest.raises(ValueError, match="codes and scores must have the shapes"):
        swapped_prediction(scores, scores[:, :1], 0.1)
    with pytest.raises(ValueError, match="scores must be of at least 2 views"):
        swapped_prediction(scores[:1], scores[:1], 0.1)
    with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
        swapped_prediction(scores, scores, 0.0)


def loss_by_settings(settings: Any, method: Method, history: History) -> Tensor:
    assert isinstance(method, SwAV)
    step, outputs = history[-1]
    candidates = outputs["scores"][:2]
    earlier = [F.normalize(outputs["embeddings"], dim=-1) for _, outputs in reversed(history[:-1])]
    images = SAMPLES * len(earlier)
    if step.epoch >= settings.queue_start_epoch and images >= settings.queue_length > 0:
        queue = torch.cat(earlier, dim=1)[:, : settings.queue_length]
        candidates = torch.cat([candidates, method.prototypes(queue)], dim=1)
    codes = sinkhorn(candidates, settings.epsilon, settings.sinkhorn_iterations)
    return swapped_prediction(outputs["scores"], codes[:, :SAMPLES], settings.temperature)


SETTING_EFFECTS = {
    "swav": SettingEffects(
        HEAD
        | LOCAL_CROPS
        | effects("loss", temperature=0.7, epsilon=0.3, sinkhorn_iterations=1, queue_start_epoch=2)
        | effects("network", prototypes=10)
        | effects("frozen", freeze_prototypes_epochs=2)
        | {
            # Full after the first epoch.
            "queue_length": other(2 * SAMPLES, "network", "loss")
        },
        loss_by_settings,
    )
}
