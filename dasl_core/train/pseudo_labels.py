"""Labels for cluster-used DAR: k-means over the embeddings that training computes anyway."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dasl_core.clustering import cluster
from dasl_core.distributed import gather, rank, world_size
from dasl_core.evaluate.cluster_quality import cluster_quality
from dasl_core.regularizers.norms import full_precision
from dasl_core.seeds import derive_seed
from dasl_core.spec import ResolvedClusters


class PseudoLabels:
    """A cluster for each training image, from a bank of the last epoch's embeddings.

    The bank holds, on each rank, the embeddings of its own shares, in the order of the steps: no
    forward is spent on it, and no rank holds all. Each is the mean over the image's global views of
    the L2-normalised embeddings (of the raw ones for Euclidean k-means). An image that was not among
    those last clustered is a class of its own: all are in the first epoch, later those that the epoch
    before had no place for. Numbers of different clusterings have nothing to do with each other.

    Images are known by their place among those trained on: what else lies in the folder may change
    before a run goes on.

    Args:
        train_samples: (N,) positions in the index of the images to train on.
        steps: of an epoch.
        share: images of a rank's share of a batch.
    """

    def __init__(
        self,
        clusters: ResolvedClusters,
        train_samples: Tensor,
        steps: int,
        share: int,
        seed: int,
    ) -> None:
        self.settings, self.k, self.seed = clusters, clusters.k, seed
        self.steps, self.share = steps, share
        self.bank: Tensor | None = None  # (steps * share, h), made when h is known
        self.place = torch.full((int(train_samples.max()) + 1,), -1)
        self.place[train_samples] = torch.arange(len(train_samples))
        self.labels = self._own_classes(len(train_samples))  # (N,) on the CPU
        self.samples = torch.zeros(steps * share * world_size(), dtype=torch.int64)
        self.filled = 0  # steps of this epoch that are in the bank

    def of(self, samples: Tensor) -> Tensor:
        """Labels (n,) of the given samples, positions in the index."""
        return self.labels[self.place[samples]]

    def observe(self, embeddings: Tensor, samples: Tensor) -> None:
        """Keep a step's embeddings.

        Args:
            embeddings: (V, B, h), raw, of this rank's share.
            samples: (n,) of the global batch, in rank order; positions in the index.
        """
        vectors = full_precision(embeddings.detach())
        if self.settings.metric == "spherical":
            vectors = F.normalize(vectors, dim=-1)
        if self.bank is None:
            self.bank = vectors.new_zeros(self.steps * self.share, vectors.shape[-1])
        at = self.filled * self.share
        self.bank[at : at + self.share] = vectors.mean(dim=0)
        batch = len(samples)
        self.samples[self.filled * batch : (self.filled + 1) * batch] = self.place[samples]
        self.filled += 1

    def end_epoch(self, epoch: int, classes: Tensor | None) -> dict[str, float]:
        """Close an epoch; every so many of them, cluster anew.

        Args:
            epoch: epochs done, this one included.
            classes: (N,) true classes of the images to train on, to compare with; or None.

        Returns:
            Figures of the clustering; none when it was not its turn.
        """
        steps, self.filled = self.filled, 0
        if steps == 0:  # every one of them was left out
            return {}
        if epoch % self.settings.every_epochs:
            return {}
        assert self.bank is not None
        bank = self.bank[: steps * self.share]
        found = cluster(
            bank,
            min(self.k, len(bank) * world_size()),
            metric=self.settings.metric,
            seed=derive_seed(self.seed, "kmeans", epoch),
            positions=self._positions(steps),
        )
        # Ranks hold their share of every step: by step, then by rank, is the order of the samples.
        parts = gather(found.assignments).view(world_size(), steps, self.share)
        assignments = parts.transpose(0, 1).flatten().cpu()
        samples = self.samples[: len(assignments)]
        before = self.labels[samples]
        self.labels = self._own_classes(len(self.labels))
        self.labels[samples] = assignments
        return cluster_quality(
            found,
            assignments,
            previous=before.where(before < self.k, -1),
            classes=None if classes is None else classes[samples],
        )

    def _own_classes(self, images: int) -> Tensor:
        return torch.arange(images) + self.k

    def _positions(self, steps: int) -> Tensor:
        """Where the bank's rows stand in the order of one process with the global batches."""
        first = torch.arange(steps) * self.share * world_size() + rank() * self.share
        return (first[:, None] + torch.arange(self.share)).flatten()

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on and is alike on all ranks."""
        rows = self.filled * self.share * world_size()
        return {"labels": self.labels, "samples": self.samples[:rows], "filled": self.filled}

    def rank_state(self) -> Tensor | None:
        """The bank's rows of the epoch under way, on the CPU: this rank's own part of the state."""
        if self.bank is None or self.filled == 0:
            return None
        # A copy: a view would take the whole bank along wherever it is sent.
        return self.bank[: self.filled * self.share].to("cpu", copy=True)

    def load_state_dict(
        self, state: dict[str, Any], bank: Tensor | None, device: torch.device
    ) -> None:
        """Take up what `state_dict` and `rank_state` gave."""
        self.labels, self.filled = state["labels"], state["filled"]
        rows = self.filled * self.share
        self.samples[: rows * world_size()] = state["samples"]
        if bank is not None:
            self.bank = bank.new_zeros(self.steps * self.share, bank.shape[1], device=device)
            self.bank[:rows] = bank
