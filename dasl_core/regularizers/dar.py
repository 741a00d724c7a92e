"""Difference alignment regularization (DAR): it makes the differences of inter-class pairs similar.

Chen et al., "Robust Similarity Learning with Difference Alignment Regularization", ICLR 2024. The
first-order difference of a pair of embeddings is ``d_ij = |phi_i - phi_j|``; the regularizer is the
CTV norm of a matrix whose columns are such differences, ``R = sum over pairs of columns G(d - d')``.
The total loss is ``L_base + lambda R``, for any base loss.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from dasl_core.distributed import gather, gather_views, group_size
from dasl_core.regularizers.all_pairs import distance_alignment
from dasl_core.regularizers.base import Regularizer
from dasl_core.regularizers.norms import CtvNorm, Reduction, ctv_norm
from dasl_core.regularizers.schedule import Schedule, weight_at
from dasl_core.seeds import stream
from dasl_core.spec import ResolvedDAR
from dasl_core.spec.regularizers.dar import ALL_PAIRS_LIMIT
from dasl_core.tensors import check_choice, check_matrix, full_precision, to_device

Difference = Literal["abs", "signed", "distance"]
Estimator = Literal["auto", "chain", "unbiased", "full"]


def difference_alignment(
    embeddings: Tensor,
    labels: Tensor,
    *,
    norm: CtvNorm = "l1",
    difference: Difference = "distance",
    estimator: Estimator = "auto",
    reduction: Reduction = "mean",
    normalize: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute the regularizer R of one batch.

    Args:
        embeddings: (N, h), the embeddings of the base loss; on several processes, those of the global batch,
            gathered with a backward that sums over ranks.
        labels: (N,) integers. Only pairs with different labels count: instance ids (cluster-free),
            cluster ids (cluster-used) or classes (supervised). Pass them on the CPU, where the chain is
            drawn, so that no step waits for the device.
        norm: G, see `ctv_norm`.
        difference: ``"abs"`` elementwise ``|phi_i - phi_j|``; ``"signed"`` ``phi_i - phi_j``, whose
            value depends on how samples are numbered; ``"distance"`` the scalar ``||phi_i - phi_j||``.
        estimator: ``"auto"`` is ``"full"`` for distances and ``"chain"`` for vectors. ``"chain"`` takes consecutive
            pairs of a random class-alternating order of the batch, as in the paper. ``"unbiased"`` reweights the chain's column pairs, those that
            share a sample and those that do not, to their frequencies among all inter-class pairs;
            if all labels differ, its expectation is exactly ``"full"``. With fewer than three columns
            it is their plain mean. ``"full"`` takes all inter-class pairs of the batch, up to N (N - 1) / 2
            columns: of distances in closed form (`distance_alignment`), of vectors for small batches only.
        reduction: ``"mean"`` divides by the number of column pairs, so that the weight carries over
            between batch sizes; ``"sum"`` is the paper's literal form.
        normalize: L2-normalize first. Without it, R can be driven to 0 by shrinking the norms.
        generator: a CPU generator for the chain's order, the same on every rank; None: torch's global one.

    Returns:
        A scalar in float32 (float64 for float64 embeddings), also under autocast. It is 0, and
        differentiable, when fewer than two columns remain, as in a batch of a single class.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """
    check_matrix("embeddings", embeddings, "(N, h)")
    _check_labels(labels, embeddings.shape[0])
    check_choice("norm", norm, get_args(CtvNorm))
    check_choice("difference", difference, get_args(Difference))
    check_choice("estimator", estimator, get_args(Estimator))
    check_choice("reduction", reduction, get_args(Reduction))
    with torch.autocast(embeddings.device.type, enabled=False):
        phi = full_precision(embeddings)
        if normalize:
            phi = F.normalize(phi, dim=1)
        if difference == "distance" and estimator in ("auto", "full"):
            return _all_distances(phi, labels, norm, reduction)
        if estimator == "full":
            pairs = _all_inter_class_pairs(labels)
        else:
            pairs = torch.stack(inter_class_chain(labels, generator))
        left, right = to_device(pairs, phi.device)
        columns = _differences(phi, left, right, difference)
        if estimator == "unbiased":
            return _unbiased_from_chain(columns, labels, norm, reduction)
        return ctv_norm(columns, norm, reduction)


def inter_class_chain(
    labels: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a random order of the batch in which neighbors differ in label; return consecutive pairs.

    A random permutation is read once. A sample with the label of its predecessor is set aside until
    a sample with another label has been placed; the remaining ones are inserted where they fit, or
    omitted. The number of links is `chain_length`, the largest possible.
    If all labels differ, the order is ``torch.randperm(N, generator=generator)``. O(N) time.

    Args:
        labels: (N,) integers, on any device.
        generator: a CPU generator, so that the order does not depend on device or rank; None: torch's global one.

    Returns:
        Two int64 index tensors (n,), on the device of `labels`: link k joins samples ``left[k]`` and
        ``right[k]``, and ``right[k] == left[k + 1]``.

    Raises:
        ValueError: `labels` are not (N,) integers or `generator` is not on the CPU.
    """
    _check_labels(labels, None)
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(f"generator must be a CPU generator; given one on {generator.device}")
    order = torch.randperm(labels.shape[0], generator=generator)
    in_order = labels.cpu()[order]
    if bool((in_order[1:] == in_order[:-1]).any()):
        order = order[_class_alternating(in_order.tolist())]
    order = to_device(order, labels.device)
    return order[:-1], order[1:]


def chain_length(labels: Tensor) -> int:
    """Return the number of links of `inter_class_chain` for these labels, equal for every random order.

    It is ``min(N - 1, 2 (N - m))`` with m the size of the largest class: every sample outside that
    class gives at most two links.
    """
    _check_labels(labels, None)
    num_samples = labels.shape[0]
    if num_samples < 2:
        return 0
    largest = max(_class_sizes(labels))
    return min(num_samples - 1, 2 * (num_samples - largest))


def pair_count(labels: Tensor) -> int:
    """Return the number of inter-class pairs of these labels: the columns of the estimator ``"full"``."""
    _check_labels(labels, None)
    return sum(size * (labels.shape[0] - size) for size in _class_sizes(labels)) // 2


def _class_alternating(labels: list[int]) -> list[int]:
    """Reorder the positions of `labels` so that neighbors have different labels; O(N)."""
    placed: list[int] = []
    # All of these have the label of the last placed sample.
    waiting: list[int] = []
    last: int | None = None
    for position, label in enumerate(labels):
        if label == last:
            waiting.append(position)
            continue
        placed.append(position)
        last = label
        if waiting:
            placed.append(waiting.pop())
            last = labels[placed[-1]]
    if not waiting:
        return placed
    # Insert the rest, with a single label, at the front and between neighbors with other labels.
    surplus = labels[waiting[0]]
    fitted: list[int] = []
    previous_is_surplus = False
    for position in placed:
        is_surplus = labels[position] == surplus
        if waiting and not is_surplus and not previous_is_surplus:
            fitted.append(waiting.pop())
        fitted.append(position)
        previous_is_surplus = is_surplus
    return fitted


def _all_distances(phi: Tensor, labels: Tensor, norm: CtvNorm, reduction: Reduction) -> Tensor:
    """Compare the distances of all inter-class pairs."""
    if len(labels) > ALL_PAIRS_LIMIT:
        raise ValueError(
            f"estimator: all pairs of {len(labels):,} embeddings need more than 4 GB. Use 'chain', or at most "
            f"{ALL_PAIRS_LIMIT:,} embeddings."
        )
    num_pairs = pair_count(labels)
    if num_pairs < 2:
        return phi[:0].sum()
    class_ids = torch.unique(labels, return_inverse=True)[1]
    value = distance_alignment(phi, to_device(class_ids, phi.device), num_pairs, norm)
    return value if reduction == "sum" else value / (num_pairs * (num_pairs - 1) // 2)


def _all_inter_class_pairs(labels: Tensor) -> Tensor:
    """Return sample indices (2, P) of every inter-class pair."""
    pairs = torch.triu_indices(labels.shape[0], labels.shape[0], offset=1, device=labels.device)
    left, right = labels[pairs]
    return pairs[:, left != right]


def _differences(phi: Tensor, left: Tensor, right: Tensor, difference: Difference) -> Tensor:
    """Return first-order differences of the pairs as rows: (n, h), or (n, 1) for distances."""
    signed = phi[left] - phi[right]
    if difference == "signed":
        return signed
    if difference == "abs":
        return signed.abs()
    distances: Tensor = torch.linalg.vector_norm(signed, dim=1, keepdim=True)
    return distances


def _unbiased_from_chain(
    columns: Tensor, labels: Tensor, norm: CtvNorm, reduction: Reduction
) -> Tensor:
    """Reweight column pairs with and without a common sample by their frequencies in the full sum.

    Of the pairs of columns of a chain of n links, n - 1 are neighbors and share a sample, and
    (n - 1)(n - 2)/2 do not. Among all inter-class pairs (degree d_i at sample i, P in total),
    ``sum_i d_i (d_i - 1)/2`` pairs of columns share one and the other P (P - 1)/2 do not: with N
    different labels, N (N - 1)(N - 2)/2 and 3 C(N, 4).
    """
    class_sizes = _class_sizes(labels)
    num_samples = labels.shape[0]
    num_pairs = pair_count(labels)
    full_sharing = sum(
        size * (num_samples - size) * (num_samples - size - 1) // 2 for size in class_sizes
    )
    full_total = num_pairs * (num_pairs - 1) // 2

    links = columns.shape[0]
    total = ctv_norm(columns, norm)
    if links < 3:
        mean = total / max(1, links * (links - 1) // 2)
    else:
        sharing = _norm_sum(columns[1:] - columns[:-1], norm)
        separate_mean = (total - sharing) / ((links - 1) * (links - 2) // 2)
        share = full_sharing / full_total
        mean = share * sharing / (links - 1) + (1 - share) * separate_mean
    return mean if reduction == "mean" else mean * full_total


def _class_sizes(labels: Tensor) -> list[int]:
    sizes: list[int] = torch.unique(labels, return_counts=True)[1].tolist()
    return sizes


def _norm_sum(rows: Tensor, norm: CtvNorm) -> Tensor:
    if norm == "l1":
        return rows.abs().sum()
    if norm == "l2":
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths.sum()
    return rows.square().sum()


def _check_labels(labels: object, num_samples: int | None) -> None:
    expected = "(N,)" if num_samples is None else f"({num_samples},), one label an embedding"
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"labels must be a tensor of shape {expected}; given {type(labels).__name__}"
        )
    if labels.dim() != 1 or num_samples not in (None, labels.shape[0]):
        raise ValueError(f"labels must have the shape {expected}; given {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers; given {labels.dtype}")


class DifferenceAlignment(nn.Module):
    """`difference_alignment` of several views as a loss term, weighted, with the defaults of jobs.

    It has neither parameters nor state: the random order of a batch is drawn from a stream of the seed
    and the step, so a resumed run draws the same orders.

    Args:
        weight: lambda, at the end of the schedule. It has no default, because one number is another
            experiment with each loss: `gradient_shares` measures the share of the gradient.
        schedule: schedule of the weight, see `weight_at`; all but ``"constant"`` need the progress of the run.
        norm, difference, estimator, reduction, normalize: see `difference_alignment`.
        seed: seed of the random orders.

    Raises:
        ValueError: an argument is not valid; the message names it.
    """

    def __init__(
        self,
        weight: float,
        *,
        schedule: Schedule = "constant",
        norm: CtvNorm = "l1",
        difference: Difference = "distance",
        estimator: Estimator = "auto",
        reduction: Reduction = "mean",
        normalize: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_choice("schedule", schedule, get_args(Schedule))
        check_choice("norm", norm, get_args(CtvNorm))
        check_choice("difference", difference, get_args(Difference))
        check_choice("estimator", estimator, get_args(Estimator))
        check_choice("reduction", reduction, get_args(Reduction))
        self.weight = weight_at(weight, "constant", 1.0)  # checks it
        self.schedule: Schedule = schedule
        self.norm: CtvNorm = norm
        self.difference: Difference = difference
        self.estimator: Estimator = estimator
        self.reduction: Reduction = reduction
        self.normalize, self.seed = normalize, seed

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        step: int,
        *,
        progress: float | None = None,
        group: ProcessGroup | None = None,
    ) -> Tensor:
        """Compute the weighted term of one batch, a scalar in float32 or float64.

        Args:
            embeddings: (V, B, h) of V views of the same B samples, raw, as the base loss uses them.
            labels: (B,) integer labels of the samples: positions in the data set (cluster-free), clusters or
                classes. The views of a sample share its label, so they are never a pair. Pass them on the CPU,
                so that no step waits for the device.
            step: number of the step, from 0, which determines the random order.
            progress: progress of the run from 0 to 1, for the schedule.
            group: process group that shares the batch equally; None: this process holds all of it. The labels are
                gathered on the device of the embeddings.

        Raises:
            ValueError: an argument is not valid; the message names it.
        """
        if embeddings.dim() != 3:
            raise ValueError(
                "embeddings must have the shape (V, B, h), such as torch.stack of the views; given "
                f"{tuple(embeddings.shape)}"
            )
        if progress is None:
            if self.schedule != "constant":
                raise ValueError(f"progress is needed for the schedule {self.schedule!r}")
            progress = 1.0
        if group_size(group) > 1:
            # In full precision, because bfloat16 would round the sum over ranks in the backward.
            embeddings = gather_views(full_precision(embeddings), group)
            labels = gather(labels.to(embeddings.device), group).cpu()
        alignment = difference_alignment(
            embeddings.flatten(0, 1),
            labels.repeat(len(embeddings)),
            norm=self.norm,
            difference=self.difference,
            estimator=self.estimator,
            reduction=self.reduction,
            normalize=self.normalize,
            generator=stream(self.seed, "dar", step),
        )
        return weight_at(self.weight, self.schedule, progress) * alignment

    def extra_repr(self) -> str:
        names = ("weight", "schedule", "norm", "difference", "estimator", "reduction", "normalize")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class DAR(Regularizer, name="dar"):
    """`difference_alignment` in a job."""

    settings: ResolvedDAR

    def __init__(self, settings: ResolvedDAR, seed: int) -> None:
        super().__init__(settings, seed)
        # Number of pairs of the last batch: the columns of its matrix.
        self.columns: int | None = None

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        settings, labels = self.settings, labels.repeat(len(embeddings))
        self.columns = (pair_count if settings.estimator == "full" else chain_length)(labels)
        return difference_alignment(
            embeddings.flatten(0, 1),
            labels,
            norm=settings.norm,
            difference=settings.difference,
            estimator=settings.estimator,
            reduction=settings.reduction,
            normalize=settings.normalize,
            generator=stream(self.seed, "dar", step),
        )

    def metrics(self) -> dict[str, Tensor]:
        return {} if self.columns is None else {"dar_columns": torch.tensor(float(self.columns))}
