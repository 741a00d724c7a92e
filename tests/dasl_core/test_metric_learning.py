"""Supervised metric learning: each loss against its paper's formula, and on any number of ranks."""

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import all_ranks
from dasl_core.methods import REGISTRY, Method, Step, build_method
from dasl_core.methods.margin_softmax import MarginSoftmax
from dasl_core.methods.metric_learning import MetricLearning
from dasl_core.methods.multi_similarity import MultiSimilarity
from dasl_core.methods.npair import NPair
from dasl_core.methods.proxy_anchor import ProxyAnchor
from dasl_core.methods.triplet import Triplet, semihard_triplet_loss
from dasl_core.spec import METHODS, SpecError
from dasl_core.spec.methods import RESOLVED_METHODS
from dasl_core.spec.methods.config import MetricLearningConfig
from dasl_core.spec.methods.margin_softmax import ResolvedMarginSoftmax
from dasl_core.spec.methods.triplet import ResolvedTriplet
from tests.support.gloo_pool import GlooPool
from tests.support.methods import build_inputs
from tests.support.setting_effects import EMBEDDING, History, SettingEffects, effects
from tests.support.training_world import resolved

WIDTH = 6


def method_of(kind: type[Method], **values: Any) -> Any:
    """Build a method with an embedding layer from 12 pixels to WIDTH, for 6 classes."""
    (name,) = (name for name, registered in REGISTRY.items() if registered is kind)
    settings = resolved_settings(name, {"embedding_dim": WIDTH} | values)
    return kind(settings, build_inputs(nn.Flatten(), 12, num_classes=6))


def resolved_settings(name: str, values: dict[str, Any]) -> Any:
    chosen = {"triplet": {"margin": 0.2}, "margin_softmax": {"margin": 0.5, "scale": 64.0}}
    return RESOLVED_METHODS[name].model_validate(chosen.get(name, {}) | values)


def embeddings_of(samples: int, seed: int = 0) -> Tensor:
    """Embeddings (samples, WIDTH) in float64, with lengths from 0.5 to 3."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(samples, WIDTH, generator=generator, dtype=torch.float64)
    return directions * (0.2 + torch.rand(samples, 1, generator=generator, dtype=torch.float64))


def loss_of(method: MetricLearning, embeddings: Tensor, labels: list[int]) -> Tensor:
    step = Step(0, 1, 1, torch.arange(len(labels)), torch.tensor(labels), all_ranks())
    return method.double().loss({"embeddings": embeddings.unsqueeze(0)}, step)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


def softplus(values: list[float], sharpness: float) -> float:
    """Compute log(1 + sum of exponentials) by definition."""
    return math.log(1 + sum(math.exp(sharpness * value) for value in values))


# --- the papers' formulas, with loops


def naive_npair(x: Tensor, labels: list[int], method: NPair) -> float:
    """Compute Sohn 2016, eq. 5 without its penalty: the first two images of a class are its pair."""
    pairs = []
    for label in sorted(set(labels)):
        first, second = [i for i, other in enumerate(labels) if other == label][:2]
        pairs.append((x[first], x[second]))

    def logit(a: Tensor, b: Tensor) -> float:
        settings = method.settings
        return settings.scale * cosine(a, b) if settings.normalize else float(a @ b)

    total = 0.0
    for own, (anchor, positive) in enumerate(pairs):
        gaps = [
            logit(anchor, other) - logit(anchor, positive)
            for number, (_, other) in enumerate(pairs)
            if number != own
        ]
        total += softplus(gaps, 1.0)
    return total / len(pairs)


def naive_proxy_anchor(x: Tensor, labels: list[int], method: ProxyAnchor) -> float:
    """Compute Kim et al. 2020, eq. 4."""
    proxies = method.criterion.proxies.detach()
    margin, alpha = method.criterion.margin, method.criterion.alpha
    positive, negative = [], []
    for number, proxy in enumerate(proxies):
        near = [margin - cosine(a, proxy) for a, y in zip(x, labels, strict=True) if y == number]
        far = [cosine(a, proxy) + margin for a, y in zip(x, labels, strict=True) if y != number]
        if near:
            positive.append(softplus(near, alpha))
        negative.append(softplus(far, alpha))
    return sum(positive) / len(positive) + sum(negative) / len(proxies)


def naive_triplet(x: Tensor, labels: list[int], method: Triplet) -> float:
    """Compute Schroff et al. 2015, eq. 2 and 4: the mean violation over triplets."""
    assert method.mean_over_triplets is not None
    margin = method.settings.margin
    z = x / x.norm(dim=1, keepdim=True)
    violations = []
    for a, p, n in np.ndindex(len(x), len(x), len(x)):
        if a == p or labels[a] != labels[p] or labels[a] == labels[n]:
            continue
        near, far = float((z[a] - z[p]).square().sum()), float((z[a] - z[n]).square().sum())
        if method.mean_over_triplets.miner is None or near < far <= near + margin:
            violations.append(max(0.0, near - far + margin))
    return sum(violations) / len(violations) if violations else 0.0


def semihard_reference(x: Tensor, labels: list[int], margin: float) -> Tensor:
    """Compute the loss of tfa.losses.triplet_semihard_loss, pair by pair.

    Among equally far negatives, it takes the first one outside and the last one inside.
    """
    z = x / x.norm(dim=1, keepdim=True)
    distances = (z.unsqueeze(1) - z).square().sum(dim=2)
    numbers = distances.tolist()
    violations = []
    for a, p in np.ndindex(len(x), len(x)):
        others = [(numbers[a][n], n) for n in range(len(x)) if labels[n] != labels[a]]
        if a == p or labels[a] != labels[p] or not others:
            continue
        outside = [other for other in others if other[0] > numbers[a][p]]
        negative = (min(outside) if outside else max(others))[1]
        violations.append(F.relu(margin + distances[a][p] - distances[a][negative]))
    return torch.stack(violations).mean() if violations else 0 * x.sum()


def naive_semihard(x: Tensor, labels: list[int], method: Triplet) -> float:
    return float(semihard_reference(x, labels, method.settings.margin))


def naive_multi_similarity(x: Tensor, labels: list[int], method: MultiSimilarity) -> float:
    """Compute Wang et al. 2019, eq. 13 to 15."""
    alpha, beta, base = method.criterion.alpha, method.criterion.beta, method.criterion.base
    epsilon, total = method.miner.epsilon, 0.0
    for a, anchor in enumerate(x):
        cosines = [cosine(anchor, other) for other in x]
        positives = [s for i, s in enumerate(cosines) if labels[i] == labels[a] and i != a]
        negatives = [s for i, s in enumerate(cosines) if labels[i] != labels[a]]
        if not positives or not negatives:
            continue
        near = [base - s for s in positives if s < max(negatives) + epsilon]
        far = [s - base for s in negatives if s > min(positives) - epsilon]
        total += softplus(near, alpha) / alpha + softplus(far, beta) / beta
    return total / len(x)


def naive_margin_softmax(x: Tensor, labels: list[int], method: MarginSoftmax) -> float:
    """Compute Liu et al. 2017, eq. 7, Wang et al. 2018, eq. 4, or Deng et al. 2019, eq. 3."""
    criterion, total = method.criterion, 0.0
    kind, margin = type(criterion).__name__, float(criterion.margin)

    def handicapped(angle: float) -> float:
        if kind == "CosFaceLoss":
            return math.cos(angle) - margin
        if kind == "ArcFaceLoss":  # past the largest angle as in the authors' code
            whole = angle + margin <= math.pi
            return (
                math.cos(angle + margin) if whole else math.cos(angle) - margin * math.sin(margin)
            )
        k = math.floor(angle * margin / math.pi)
        return float((-1) ** k * math.cos(margin * angle) - 2 * k)

    for embedding, label in zip(x, labels, strict=True):
        cosines = [cosine(embedding, weight) for weight in criterion.W.detach().T]
        cosines[label] = handicapped(math.acos(cosines[label]))
        scale = criterion.scale * (1 if method.normalize else float(embedding.norm()))
        gaps = [c - cosines[label] for i, c in enumerate(cosines) if i != label]
        total += softplus(gaps, scale)
    return total / len(x)


CASES: dict[str, tuple[Callable[[], Any], Callable[..., float]]] = {
    "npair": (lambda: method_of(NPair), naive_npair),
    "npair-raw": (lambda: method_of(NPair, normalize=False), naive_npair),
    "proxy-anchor": (lambda: method_of(ProxyAnchor), naive_proxy_anchor),
    "triplet-all": (lambda: method_of(Triplet, mining="all", margin=1.0), naive_triplet),
    "triplet-all-semihard": (lambda: method_of(Triplet, mining="all_semihard"), naive_triplet),
    "triplet-semihard": (lambda: method_of(Triplet), naive_semihard),
    "multi-similarity": (lambda: method_of(MultiSimilarity), naive_multi_similarity),
    "margin-arcface": (lambda: method_of(MarginSoftmax, scale=8.0), naive_margin_softmax),
    "margin-cosface": (
        lambda: method_of(MarginSoftmax, loss="cosface", margin=0.35),
        naive_margin_softmax,
    ),
    "margin-sphereface": (
        lambda: method_of(MarginSoftmax, loss="sphereface", margin=4, scale=8.0),
        naive_margin_softmax,
    ),
    "margin-sphereface-raw": (
        lambda: method_of(MarginSoftmax, loss="sphereface", margin=4, scale=None),
        naive_margin_softmax,
    ),
}


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=25)
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_loss_equals_formula_of_the_paper(case: str, classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    build, naive = CASES[case]
    method = build().double()
    # Classes of different sizes, in random order.
    labels = [*range(classes), *range(classes), *torch.randint(classes, (3,)).tolist()]
    labels = [labels[i] for i in torch.randperm(len(labels)).tolist()]
    x = embeddings_of(len(labels), seed)
    assert loss_of(method, x, labels).item() == pytest.approx(
        naive(x, labels, method), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_batch_without_pairs_or_negatives_has_finite_gradient(case: str, labels: list[int]) -> None:
    x = embeddings_of(4).requires_grad_()
    loss = loss_of(CASES[case][0](), x, labels)
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient.isfinite().all()
    if not case.startswith(("proxy", "margin")) and (labels[0] != labels[1] or "triplet" in case):
        assert loss.item() == gradient.abs().sum().item() == 0


# Unit vectors whose distances are exact in float64, so that many are equal.
LATTICE = [
    *(sign * row for row in torch.eye(4, dtype=torch.float64) for sign in (1, -1)),
    *(torch.tensor(signs).double() for signs in itertools.product((0.5, -0.5), repeat=4)),
]


def assert_semihard(x: Tensor, labels: list[int], margin: float) -> None:
    """Check value and gradient against the reference."""
    results = []
    for loss in (
        semihard_triplet_loss(x, torch.tensor(labels), margin),
        semihard_reference(x, labels, margin),
    ):
        (gradient,) = torch.autograd.grad(loss, x)
        results.append((loss.detach(), gradient))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(LATTICE), st.integers(0, 2)), min_size=2, max_size=8),
    st.sampled_from([0.2, 1.0, 3.0]),
)
def test_semihard_triplet_loss_equals_reference_where_distances_are_equal(
    batch: list[tuple[Tensor, int]], margin: float
) -> None:
    lengths = 2.0 ** torch.arange(len(batch)).double().unsqueeze(1)
    x = (torch.stack([vector for vector, _ in batch]) * lengths).requires_grad_()
    assert_semihard(x, [label for _, label in batch], margin)


def test_equal_embeddings_have_finite_gradient() -> None:
    for build, _ in CASES.values():
        x = torch.ones(4, WIDTH, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss_of(build(), x, [0, 0, 1, 1]), x)
        assert gradient.isfinite().all()


# --- the network and its optimizer


def test_half_precision_is_compared_in_float32() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    x = embeddings_of(4).bfloat16()
    for build, _ in CASES.values():
        method = build().float()
        step = Step(0, 1, 1, torch.arange(4), labels)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = method.loss({"embeddings": x.unsqueeze(0)}, step)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(
            loss, method.loss({"embeddings": x.float().unsqueeze(0)}, step), rtol=0, atol=0
        )


# --- on any number of ranks


def gradients(case: str, embeddings: np.ndarray, labels: list[int]) -> dict[str, np.ndarray]:
    """The loss and the gradients of embeddings and proxies, as in DDP."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(1)
    method = CASES[case][0]().double()
    own = torch.from_numpy(embeddings).chunk(world)[rank].clone().requires_grad_()
    loss = loss_of(method, own, labels)
    (loss / world).backward()
    assert own.grad is not None
    results = {"loss": np.array(loss.item()), "embeddings": own.grad.numpy()}
    for name, parameter in method.named_parameters():
        if not name.startswith("criterion."):
            continue
        assert parameter.grad is not None
        results[name] = parameter.grad.numpy()
    return results


@pytest.mark.parametrize("case", CASES)
def test_ranks_compute_loss_and_gradient_of_one_process(pool: GlooPool, case: str) -> None:
    x, labels = embeddings_of(16).numpy(), [0, 1, 2, 3] * 4
    alone = gradients(case, x, labels)
    assert np.abs(alone["embeddings"]).max() > 1e-3
    results = pool.call(4, gradients, case, x, labels)
    together = np.concatenate([result["embeddings"] for result in results])
    np.testing.assert_allclose(together, alone["embeddings"], rtol=0, atol=1e-12)
    for name in alone.keys() - {"embeddings"}:
        # Proxies: the ranks' gradients add up, since each is that of loss / W.
        total = sum(result[name] for result in results) / (4 if name == "loss" else 1)
        np.testing.assert_allclose(total, alone[name], rtol=0, atol=1e-11)


# --- settings


SUPERVISED = [name for name, part in METHODS.items() if issubclass(part, MetricLearningConfig)]


@pytest.mark.parametrize("name", SUPERVISED)
def test_recipe_is_that_of_supervised_learning(pictures: DatasetIndex, name: str) -> None:
    spec = resolved(
        pictures, method={"name": name}, backbone={"name": "test_vit"}, augment={"blur": "auto"}
    )
    assert spec.method.num_views == 1
    assert (spec.augment.crop_scale, spec.augment.flip) == ((0.16, 1.0), 0.5)
    assert (spec.augment.jitter, spec.augment.grayscale, spec.augment.blur) == (0, 0, 0)
    assert spec.train.optimizer.name == "adamw"
    per_class = {"npair": 2, "margin_softmax": None}
    assert spec.train.samples_per_class == per_class.get(name, 4)


def test_auto_margin_depends_on_mining(pictures: DatasetIndex) -> None:
    def margin(**changes: Any) -> float:
        method = resolved(pictures, method={"name": "triplet", **changes}).method
        assert isinstance(method, ResolvedTriplet)
        return method.margin

    assert margin(mining="semihard", margin="auto") == 0.2
    assert margin(mining="all", margin="auto") == 1.0
    assert margin(mining="all_semihard", margin="auto") == 0.2
    assert margin(margin=0.7) == 0.7


@pytest.mark.parametrize(
    ("loss", "margin", "scale"),
    [("arcface", 0.5, 64.0), ("cosface", 0.35, 64.0), ("sphereface", 4.0, None)],
)
def test_auto_margin_and_scale_are_those_of_the_papers(
    pictures: DatasetIndex, loss: str, margin: float, scale: float | None
) -> None:
    spec = resolved(pictures, method={"name": "margin_softmax", "loss": loss, "scale": "auto"})
    assert isinstance(spec.method, ResolvedMarginSoftmax)
    assert (spec.method.margin, spec.method.scale) == (margin, scale)
    method = build_method(spec, 3)
    assert isinstance(method, MarginSoftmax)
    assert method.criterion.margin == pytest.approx(margin)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"loss": "sphereface", "margin": 1.5}, "method.margin"),
        ({"loss": "cosface", "margin": 2.5}, "method.margin"),
        ({"scale": None}, "method.scale"),
    ],
)
def test_margin_or_scale_that_loss_does_not_have_is_refused(
    pictures: DatasetIndex, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError) as error:
        resolved(pictures, method={"name": "margin_softmax", **settings})
    assert [problem.field for problem in error.value.problems] == [field]


def test_embedding_layer_starts_as_in_proxy_anchors_code(pictures: DatasetIndex) -> None:
    settings = {"name": "proxy_anchor", "embedding_init": "kaiming", "embedding_dim": 2048}
    head = build_method(resolved(pictures, method=settings), num_classes=3).get_submodule("head")
    assert isinstance(head, nn.Linear)
    assert head.weight.std().item() == pytest.approx((2 / 2048) ** 0.5, rel=0.01)
    assert not head.bias.any()


def test_batch_norm_precedes_the_embedding_layer(pictures: DatasetIndex) -> None:
    settings = {"name": "npair", "embedding_norm": True}
    method = build_method(resolved(pictures, method=settings), num_classes=3)
    images = torch.randn(64, 3, 16, 16)
    inputs: list[Tensor] = []
    method.get_submodule("head.1").register_forward_hook(
        lambda module, arguments, output: inputs.append(arguments[0].detach())
    )
    method([images])
    assert inputs[0].mean(dim=0).abs().max() < 1e-5
    assert inputs[0].std(dim=0).max() < 1.1


@pytest.mark.slow
def test_other_methods_work_without_pytorch_metric_learning() -> None:
    program = (
        "import sys; sys.modules['pytorch_metric_learning'] = None\n"
        "import dasl_core.methods as m; assert 'npair' in m.REGISTRY\n"
        "from torch import nn\n"
        "from dasl_core.spec.methods import RESOLVED_METHODS as s\n"
        "from tests.support.methods import build_inputs\n"
        "simclr = s['simclr'](hidden_dim=2, temperature=0.1, last_batch_norm=False)\n"
        "m.REGISTRY['simclr'](simclr, build_inputs(nn.Identity(), 2))\n"
        "try: m.REGISTRY['npair'](s['npair'](), build_inputs(nn.Identity(), 2))\n"
        "except ImportError as error: assert 'pytorch_metric_learning' in str(error)\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- the effect of each setting


def loss_by_settings(settings: Any, method: Method, history: History) -> Tensor:
    """Compute the loss with a minimal backbone: it depends only on the head's width and on proxies."""
    minimal = type(method)(settings, build_inputs(nn.Identity(), 1, num_classes=3))
    proxies = {name: w for name, w in method.state_dict().items() if name.startswith("criterion.")}
    minimal.load_state_dict(proxies, strict=False)
    return minimal.loss(history[-1][1], history[-1][0])


SETTING_EFFECTS = {
    "margin_softmax": SettingEffects(
        EMBEDDING | effects("loss", loss="cosface", margin=0.2, scale=9.0), loss_by_settings
    ),
    "npair": SettingEffects(
        EMBEDDING | effects("loss", normalize=False, scale=3.0), loss_by_settings
    ),
    "proxy_anchor": SettingEffects(
        EMBEDDING | effects("loss", margin=0.4, alpha=9.0) | effects("rates", proxy_lr=7.0),
        loss_by_settings,
    ),
    "triplet": SettingEffects(
        EMBEDDING | effects("loss", mining="all", margin=0.7), loss_by_settings
    ),
    "multi_similarity": SettingEffects(
        EMBEDDING | effects("loss", alpha=5.0, beta=9.0, base=-0.1, epsilon=0.05), loss_by_settings
    ),
}
