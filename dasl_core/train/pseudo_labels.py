"""Pseudo-labels for DAR: k-means over the embeddings that training computes anyway."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.clustering import cluster, cluster_quality
from dasl_core.distributed import all_ranks, gather, rank, world_size
from dasl_core.seeds import derive_seed
from dasl_core.spec import ResolvedClusters, ResolvedJobSpec
from dasl_core.tensors import full_precision
from dasl_core.train.data import TrainingData


class PseudoLabels:
    """A cluster for each training image, from a bank of the last epoch's embeddings.

    The bank of each rank holds the embeddings of its shares, in the order of the steps. It needs no
    additional forward, and no rank holds all of them. Each row is the mean over the image's global views of
    the L2-normalized embeddings (raw ones for Euclidean k-means). An image that was not in the last
    clustering has a class to itself: all images in the first epoch, and later those of the dropped last
    batch. Cluster numbers of different clusterings are unrelated.

    Images are identified by their position among the training images, because other files in the folder
    may change before a run is resumed.

    Args:
        train_indices: (N,) positions in the index of the images to train on.
        steps: steps of an epoch.
        share: number of images in a rank's share of a batch.
    """

    def __init__(
        self,
        clusters: ResolvedClusters,
        train_indices: Tensor,
        steps: int,
        share: int,
        seed: int,
    ) -> None:
        self.settings, self.k, self.seed = clusters, clusters.k, seed
        self.steps, self.share = steps, share
        self.bank: Tensor | None = None  # (steps * share, h), created at the first step
        self.place = torch.full((int(train_indices.max()) + 1,), -1)
        self.place[train_indices] = torch.arange(len(train_indices))
        self.labels = self._singletons(len(train_indices))  # (N,) on the CPU
        self.places = torch.zeros(steps * share * world_size(), dtype=torch.int64)
        self.filled = 0  # steps of this epoch in the bank

    def labels_at(self, indices: Tensor) -> Tensor:
        """Return labels (n,) of the images at these positions in the index."""
        return self.labels[self.place[indices]]

    def observe(self, embeddings: Tensor, indices: Tensor) -> None:
        """Store a step's embeddings.

        Args:
            embeddings: (V, B, h), raw, of this rank's share.
            indices: (n,) positions in the index of the global batch, in rank order.
        """
        vectors = full_precision(embeddings.detach())
        if self.settings.metric == "spherical":
            vectors = F.normalize(vectors, dim=-1)
        if self.bank is None:
            self.bank = vectors.new_zeros(self.steps * self.share, vectors.shape[-1])
        at = self.filled * self.share
        self.bank[at : at + self.share] = vectors.mean(dim=0)
        batch = len(indices)
        self.places[self.filled * batch : (self.filled + 1) * batch] = self.place[indices]
        self.filled += 1

    def forget(self, age: int) -> None:
        """Remove the embeddings of a skipped step, after which `age` steps were stored, and shift those."""
        assert self.bank is not None
        step = self.filled - 1 - age
        for rows, share in (
            (self.bank, self.share),
            (self.places, self.share * world_size()),
        ):
            later = rows[(step + 1) * share : self.filled * share].clone()
            rows[step * share : (self.filled - 1) * share] = later
        self.filled -= 1

    def end_epoch(
        self,
        epoch: int,
        classes: Tensor | None,
        keepalive: Callable[[], object] = lambda: None,
    ) -> dict[str, float]:
        """Close an epoch, and cluster the bank if it is due.

        Args:
            epoch: epochs done, this one included.
            classes: (N,) true classes of the training images for comparison, or None.
            keepalive: called repeatedly during the clustering.

        Returns:
            Metrics of the clustering; empty if it was not due.
        """
        steps, self.filled = self.filled, 0
        if steps == 0:  # all steps were skipped
            return {}
        if epoch % self.settings.every_epochs:
            return {}
        assert self.bank is not None
        bank = self.bank[: steps * self.share]
        clustering = cluster(
            bank,
            min(self.k, len(bank) * world_size()),
            metric=self.settings.metric,
            seed=derive_seed(self.seed, "kmeans", epoch),
            positions=self._positions(steps),
            group=all_ranks(),
            on_iteration=keepalive,
        )
        # Each rank holds its share of every step: images are ordered by step, then by rank.
        shares = gather(clustering.assignments, all_ranks()).view(world_size(), steps, self.share)
        assignments = shares.transpose(0, 1).flatten().cpu()
        places = self.places[: len(assignments)]
        before = self.labels[places]
        self.labels = self._singletons(len(self.labels))
        self.labels[places] = assignments
        return cluster_quality(
            clustering,
            assignments,
            previous=before.where(before < self.k, -1),
            classes=None if classes is None else classes[places],
        )

    def _singletons(self, images: int) -> Tensor:
        return torch.arange(images) + self.k

    def _positions(self, steps: int) -> Tensor:
        """Return the positions of the bank's rows in the order of a single process."""
        first = torch.arange(steps) * self.share * world_size() + rank() * self.share
        return (first[:, None] + torch.arange(self.share)).flatten()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is equal on all ranks."""
        rows = self.filled * self.share * world_size()
        return {"labels": self.labels, "samples": self.places[:rows], "filled": self.filled}

    def rank_state(self) -> Tensor | None:
        """Return this rank's own state: the bank's rows of the current epoch, on the CPU."""
        if self.bank is None or self.filled == 0:
            return None
        # A copy, because a view would be pickled with the whole bank.
        return self.bank[: self.filled * self.share].to("cpu", copy=True)

    def load_state_dict(
        self, state: dict[str, Any], banks: Sequence[Tensor | None], device: torch.device
    ) -> None:
        """Restore a `state_dict` and the `rank_state` of every rank; the number of ranks may differ."""
        self.labels, self.filled = state["labels"], state["filled"]
        rows = self.filled * self.share
        self.places[: rows * world_size()] = state["samples"]
        present = [bank for bank in banks if bank is not None]
        if present:
            # Every rank has its share of each step's batch.
            shares = [bank.view(self.filled, -1, bank.shape[1]) for bank in present]
            batches = torch.cat(shares, dim=1)
            mine = batches[:, rank() * self.share : (rank() + 1) * self.share].flatten(0, 1)
            self.bank = mine.new_zeros(self.steps * self.share, mine.shape[1], device=device)
            self.bank[:rows] = mine


def build_pseudo_labels(spec: ResolvedJobSpec, data: TrainingData) -> PseudoLabels | None:
    """Create the labels of DAR on k-means clusters; None if it uses other labels."""
    dar = spec.dar
    if dar is None or not dar.active or dar.labels != "cluster" or dar.clusters.source != "kmeans":
        return None
    return PseudoLabels(
        dar.clusters,
        torch.from_numpy(data.train.indices),
        data.loader.steps,
        data.loader.batch_size // world_size(),
        spec.train.seed,
    )
