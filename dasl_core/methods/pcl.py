"""PCL (Li et al., "Prototypical Contrastive Learning of Unsupervised Representations", ICLR 2021)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from dasl_core.clustering import cluster
from dasl_core.distributed import all_reduce_sum, gather, rank_share
from dasl_core.methods.base import BuildInputs, Outputs, Step
from dasl_core.methods.ema_teacher import EMATeacherMethod
from dasl_core.models.ema import Teacher
from dasl_core.seeds import derive_seed
from dasl_core.spec.methods.pcl import ResolvedPCL
from dasl_core.tensors import check_matrix, check_temperature, full_precision, to_device

SMOOTHING = 10.0  # alpha of eq. 12: keeps small clusters from a low temperature
KMEANS_ITERATIONS = 20  # as in the authors' code


class PCL(EMATeacherMethod, name="pcl"):
    """PCL: match a query with the key of the image's other view and with the image's prototypes."""

    settings: ResolvedPCL
    accumulates = True
    queue: Tensor
    """(Q, h) normalized keys of earlier batches of all ranks, replaced in turn; equal on all ranks."""
    bank: Tensor
    """(M, h) normalized keys of an epoch, in the order of the global batches; equal on all ranks."""
    bank_images: Tensor
    """(M,) positions in the data set of the bank's images; -1 where no key was stored."""
    clustered_images: Tensor
    """(M,) positions in the data set of the images that were clustered, ascending; -1 for none."""
    assignments: Tensor
    """(C, M) prototype of each of them in each of C clusterings; -1 for none."""
    prototypes: Tensor
    """(K, h) normalized prototypes of all clusterings, one after the other."""
    concentrations: Tensor
    """(K,) factors on the temperature of each prototype, with a mean of 1 in each clustering."""

    def __init__(self, settings: ResolvedPCL, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        width, bank, clusters = settings.projection_dim, settings.bank_size, settings.clusters
        self.projector = nn.Sequential(
            nn.Linear(inputs.features, settings.hidden_dim),
            nn.ReLU(inplace=True),
            nn.Linear(settings.hidden_dim, width),
        )
        self.teacher = Teacher(self.backbone, self.projector)
        queue = torch.randn(settings.queue_length, width)
        self.register_buffer("queue", F.normalize(queue, dim=1))
        self.register_buffer("bank", torch.zeros(bank, width))
        for name in ("bank_images", "clustered_images"):
            self.register_buffer(name, torch.full((bank,), -1))
        self.register_buffer("assignments", torch.full((len(clusters), bank), -1))
        self.register_buffer("prototypes", torch.zeros(sum(clusters), width))
        self.register_buffer("concentrations", torch.ones(sum(clusters)))
        # That of the initial weights: equal on all ranks and after a resume.
        self._seed = torch.initial_seed()
        self._keys: list[Tensor] = []  # of the micro-batches of this step
        self._new_keys = torch.empty(0)  # of the global batch of this step
        self._metrics: dict[str, Tensor] = {}

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        """Compute ``embeddings``, the queries of the first view, and ``keys`` of the second; both (1, B, h)."""
        queried, keyed = views
        return {
            "embeddings": self.embed(queried).unsqueeze(0),
            "keys": self.teacher(keyed).unsqueeze(0),
        }

    @property
    def embedding_head(self) -> nn.Module:
        return self.projector

    @property
    def student_head(self) -> nn.Module:
        return self.projector

    def _momentum(self, step: Step) -> float:
        return self.settings.teacher_momentum  # constant, as in MoCo

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        self._expect_update(step)
        keys = F.normalize(full_precision(outputs["keys"][0].detach()), dim=1)
        self._keys.append(keys)
        queries = outputs["embeddings"][0]
        loss = queue_loss(queries, keys, self.queue, self.settings.temperature)
        if step.epoch < self.settings.warmup_epochs:
            return loss
        of_images = self._assignments_of(rank_share(step.indices, step.group))
        terms = []
        for assigned, (first, last) in zip(of_images, self._ranges(), strict=True):
            temperatures = self.settings.temperature * self.concentrations[first:last]
            terms.append(
                prototype_loss(queries, assigned, self.prototypes[first:last], temperatures)
            )
        prototype_term = torch.stack(terms).mean()
        self._metrics = {"prototype_loss": prototype_term.detach()}
        return loss + prototype_term

    def _ranges(self) -> list[tuple[int, int]]:
        """The first and the last row, exclusive, of each clustering in `prototypes`."""
        ends = torch.tensor(self.settings.clusters).cumsum(0).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def _assignments_of(self, images: Tensor) -> Tensor:
        """Prototypes (C, n) of images by their positions in the data set (n,); -1 for none."""
        images = to_device(images, self.clustered_images.device)
        places = torch.searchsorted(self.clustered_images, images)
        places = places.clamp(max=len(self.clustered_images) - 1)
        known = self.clustered_images[places] == images
        return torch.where(known, self.assignments[:, places], -1)

    @torch.no_grad()
    def before_update(self, step: Step) -> None:
        super().before_update(step)
        self._new_keys = gather(torch.cat(self._keys), step.group).to(self.queue.dtype)
        self._keys.clear()

    def restored_buffers(self) -> list[Tensor]:
        # Only `after_update` changes the rest: the bank of ImageNet has 655 MB, too much to copy in each step.
        names = (
            "queue",
            "bank",
            "bank_images",
            "clustered_images",
            "assignments",
            "prototypes",
            "concentrations",
        )
        return [buffer for name, buffer in self.named_buffers() if name not in names]

    @torch.no_grad()
    def _store(self, step: Step) -> None:
        """Put the keys of the batch into queue and bank."""
        keys = self._new_keys
        batch = len(keys)
        slots = torch.arange(step.index * batch, (step.index + 1) * batch, device=keys.device)
        newest = slice(-len(self.queue), None)  # a batch may be larger than the queue
        first = step.index % step.per_epoch * batch
        rows = slice(first, min(first + batch, len(self.bank)))
        stored = max(0, rows.stop - first)
        images = to_device(step.indices[:stored], keys.device)
        for buffer, places, values in (
            (self.queue, slots[newest] % len(self.queue), keys[newest]),
            (self.bank, rows, keys[:stored]),
            (self.bank_images, rows, images),
        ):
            if step.updated is not None:
                values = torch.where(step.updated, values, buffer[places])
            buffer[places] = values

    def after_update(self, step: Step) -> None:
        super().after_update(step)
        self._store(step)
        ends_epoch = (step.index + 1) % step.per_epoch == 0
        is_last = step.index + 1 >= step.total
        is_due = ends_epoch and self.settings.warmup_epochs <= step.epoch + 1 and not is_last
        # A clustering waits for the device anyway.
        if is_due and (step.updated is None or bool(step.updated)):
            self._cluster(step)

    @torch.no_grad()
    def _cluster(self, step: Step) -> None:
        """Cluster the bank, each rank a share of its rows."""
        stored = self.bank_images >= 0
        used = rank_share(stored, step.group)
        keys = rank_share(self.bank, step.group)[used]
        positions = rank_share(stored.cumsum(0) - 1, step.group)[used]
        if int(stored.sum()) < max(self.settings.clusters):
            return  # too many steps were skipped
        order = self.bank_images.argsort(stable=True)
        self.clustered_images.copy_(self.bank_images[order])
        for number, (k, (first, last)) in enumerate(
            zip(self.settings.clusters, self._ranges(), strict=True)
        ):
            clustering = cluster(
                keys,
                k,
                metric="euclidean",
                seed=derive_seed(self._seed, "prototypes", step.index, number),
                max_iterations=KMEANS_ITERATIONS,
                positions=positions.cpu(),
                group=step.group,
            )
            distances = (keys - clustering.centers[clustering.assignments]).norm(dim=1)
            self.prototypes[first:last] = F.normalize(clustering.centers, dim=1)
            self.concentrations[first:last] = concentrations(
                distances, clustering.assignments, k, step.group
            )
            assigned = torch.full_like(used, -1, dtype=torch.int64)
            assigned[used] = clustering.assignments
            self.assignments[number] = gather(assigned, step.group)[order]

    def metrics(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        """``prototype_loss``: the part of the loss that compares queries with prototypes."""
        return super().metrics(outputs, step) | self._metrics


def queue_loss(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """Compute InfoNCE of queries, each with its key among it and those of a queue (He et al., CVPR 2020, eq. 1).

    Args:
        queries: (B, h), raw; float16 and bfloat16 are computed in float32.
        keys: (B, h), normalized.
        queue: (Q, h), normalized.
        temperature: divides the cosine similarities.

    Raises:
        ValueError: an argument does not match this description.
    """
    check_matrix("queries", queries, "(B, h)")
    check_temperature(temperature)
    with torch.autocast(queries.device.type, enabled=False):
        directions = F.normalize(full_precision(queries), dim=1)
        positive = (directions * keys).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, directions @ queue.T], dim=1) / temperature
        return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.int64))


def prototype_loss(
    queries: Tensor, assigned: Tensor, prototypes: Tensor, temperatures: Tensor
) -> Tensor:
    """Compute ProtoNCE's term of one clustering: cross-entropy of queries and prototypes (Li et al., eq. 11).

    It is the mean over samples; one without a prototype counts with 0.

    Args:
        queries: (B, h), raw; float16 and bfloat16 are computed in float32.
        assigned: (B,) int64, the prototype of each query's image; -1 for none.
        prototypes: (k, h), normalized.
        temperatures: (k,), divide the cosine similarities with the prototypes.

    Raises:
        ValueError: `queries` have another shape.
    """
    check_matrix("queries", queries, "(B, h)")
    with torch.autocast(queries.device.type, enabled=False):
        directions = F.normalize(full_precision(queries), dim=1)
        logits = directions @ prototypes.T / temperatures
        total = F.cross_entropy(logits, assigned, ignore_index=-1, reduction="sum")
        return total / len(queries)


def concentrations(
    distances: Tensor, assignments: Tensor, k: int, group: ProcessGroup | None = None
) -> Tensor:
    """Estimate how spread each cluster is (Li et al., eq. 12), with a mean of 1 over clusters.

    A cluster of one point gets the largest of all; extremes are clamped to the 10th and the 90th percentile.

    Args:
        distances: (n,) of this rank's points to their centers.
        assignments: (n,) int64, clusters of the points.
        k: number of clusters.
        group: process group over which the points are shared; None: this process holds all of them.
    """
    sums = distances.new_zeros(2, k, dtype=torch.float64)
    sums[0].index_add_(0, assignments, distances.double())
    sums[1] = torch.bincount(assignments, minlength=k)
    totals, sizes = all_reduce_sum(sums, group)
    spread = totals / sizes.clamp(min=1) / (sizes + SMOOTHING).log()
    spread = torch.where(sizes > 1, spread, spread.where(sizes > 1, 0).max())
    low, high = torch.quantile(spread, spread.new_tensor([0.1, 0.9]))
    spread = spread.clamp(low, high)
    # All 0 if every point is its center: then all prototypes have the same temperature.
    mean = spread.mean()
    return torch.where(mean > 0, spread / mean, 1).to(distances.dtype)
