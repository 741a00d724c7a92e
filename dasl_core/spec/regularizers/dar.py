"""Settings of difference alignment regularization (DAR)."""

import math
from typing import Literal

from pydantic import Field

from dasl_core.spec.base import Auto, SpecModel
from dasl_core.spec.fields import ClusterCount, PositiveInt, Weight
from dasl_core.spec.methods import MethodConfig
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.regularizers.config import (
    PairLabels,
    RegularizerConfig,
    RegularizerContext,
    Share,
)

# For vectors: all pairs of 1,024 embeddings are 524 thousand columns, 268 MB at a width of 128. l2 compares all
# pairs of columns: 128 embeddings have about the same number of columns as a chain of 8,192.
FULL_LIMIT, FULL_L2_LIMIT = 1024, 128
# For distances: 54 bytes for each of 72 million pairs, on every rank.
ALL_PAIRS_LIMIT = 12_000


def choose_k(images: int) -> int:
    """Choose the number of clusters: the square root of the number of images, from 2 to 10,000.

    Our choice, because the sources on DAR give none. It is 72 for 5 thousand images, 356 for ImageNet-100 and
    1,132 for ImageNet, between its number of classes and the 10,000 that served DeepCluster best (Caron et al.,
    ECCV 2018). DAR only needs similar images in a cluster, so too many clusters do little harm.
    """
    return min(10_000, max(2, round(math.sqrt(images))))


class Clusters(SpecModel):
    """Source of the labels of cluster-used DAR."""

    source: Literal["kmeans", "prototypes"] | Auto = "auto"
    """For `labels: cluster`. "kmeans" clusters the embeddings of the last epoch; "prototypes" uses the
    method's own prototypes (swav). "auto": "prototypes" for swav, else "kmeans"."""
    k: ClusterCount | Auto = "auto"
    """Number of k-means clusters. "auto": the square root of the number of training images, from 2 to 10,000;
    2 if clusters are not used."""
    metric: Literal["spherical", "euclidean"] = "spherical"
    """k-means by cosine, or by Euclidean distance of raw embeddings."""
    every_epochs: PositiveInt = 1
    """Epochs between two runs of k-means; must be less than `train.epochs`. Until the first run, each image
    is its own cluster. Later, the same holds for images that were not part of the clustered epoch, those of
    the incomplete last batch."""

    def resolve(self, method: MethodConfig, images: int) -> "ResolvedClusters":
        """Choose the source and the number of clusters."""
        source = "prototypes" if method.has_prototypes else "kmeans"
        return self.without_auto(ResolvedClusters, {"source": source, "k": choose_k(images)})


class ResolvedClusters(Clusters):
    """Pseudo-label clusters with their source and number."""

    source: Literal["kmeans", "prototypes"]
    k: ClusterCount


# Placeholder if clusters are unused, so that a resolved spec has no "auto".
UNUSED_CLUSTERS = ResolvedClusters(source="kmeans", k=2)


class DAR(RegularizerConfig):
    """Difference alignment regularization (Chen et al., ICLR 2024), added to the method's loss."""

    name = "dar"
    top_level = True

    weight: Weight | Auto | None = "auto"
    """The factor lambda. 0 leaves the run bit-identical to one without DAR. "auto": chosen by `share`."""
    labels: Literal["instance", "cluster", "class"] = "instance"
    """Which samples may form a pair: those of different images ("instance", the paper's cluster-free), of
    different clusters ("cluster", cluster-used), or of different classes of the data set ("class",
    supervised). Two views of one image never form a pair."""
    clusters: Clusters = Field(default_factory=Clusters)
    """Settings for `labels: cluster`."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the weight over the training: constant, or growing from 0 to `weight` linearly or along
    half a cosine."""
    norm: Literal["l1", "l2", "sq_l2"] = "l1"
    """G, the norm that measures how far apart two differences are. `sq_l2` is not a norm; it is meant for
    ablations. `l2` of elementwise differences takes time quadratic in the batch."""
    difference: Literal["abs", "signed", "distance"] = "distance"
    """The difference of a pair: "abs" is the absolute difference of each coordinate, "signed" the signed one,
    "distance" the Euclidean distance, a single number, for which `l1` and `l2` are the same."""
    estimator: Literal["chain", "unbiased", "full"] | Auto = "auto"
    """ "chain" takes consecutive pairs of a random order of the batch, as in the paper. "unbiased" reweights
    its column pairs, those that share a sample and those that do not, to their frequencies among all pairs of
    the batch. "full" takes all pairs: of at most 12,000 embeddings with `difference: distance`, otherwise of
    1,024, or 128 with `norm: l2`. "auto": "full" for distances, otherwise "chain"."""
    reduction: Literal["mean", "sum"] = "mean"
    """ "mean" divides by the number of column pairs, so that a weight has the same meaning at every batch
    size. "sum" is the literal form of the paper."""
    normalize: bool = True
    """L2-normalize embeddings first. Without it, shrinking all norms drives the term to 0, which risks
    collapse unless the loss itself fixes the scale of the embeddings."""

    @property
    def _estimator(self) -> Literal["chain", "unbiased", "full"]:
        if self.estimator != "auto":
            return self.estimator
        return "full" if self.difference == "distance" else "chain"

    @property
    def pair_labels(self) -> PairLabels:
        return self.labels

    @property
    def weight_schedule(self) -> Literal["constant", "linear", "cosine"]:
        return self.schedule

    def check(self, context: RegularizerContext) -> list[FieldProblem]:
        problems = Problems(super().check(context))
        if self.reduction == "sum" and not isinstance(self.weight, float):
            problems.add_no_effect("dar.reduction", "sum", "dar.share", "dar.weight: a number")
        self._check_clusters(context, problems)
        if self.difference == "distance":
            most = ALL_PAIRS_LIMIT
        else:
            most = FULL_L2_LIMIT if self.norm == "l2" else FULL_LIMIT
        if self._estimator == "full" and context.embeddings > most:
            problems.add(
                "dar.estimator",
                f"compares all pairs of the {context.embeddings:,} embeddings of a batch",
                repr(self.estimator),
                f"'chain' or 'unbiased', or at most {most:,} embeddings",
            )
        return problems

    def _check_clusters(self, context: RegularizerContext, problems: Problems) -> None:
        clusters = self.clusters
        if self.labels != "cluster":
            for name, field in Clusters.model_fields.items():
                given = getattr(clusters, name)
                if given not in (field.default, getattr(UNUSED_CLUSTERS, name)):
                    path, cause = f"dar.clusters.{name}", f"dar.labels: {self.labels}"
                    problems.add_no_effect(path, given, cause, "dar.labels: cluster")
            return
        if clusters.k != "auto" and clusters.k > context.train_images:
            message = f"is more than the {context.train_images} images that the data set leaves for training"
            expected = f"at most {context.train_images}"
            problems.add("dar.clusters.k", message, str(clusters.k), expected)
        resolved = clusters.resolve(context.method, context.train_images)
        if resolved.source == "kmeans" and clusters.every_epochs >= context.epochs:
            problems.add(
                "dar.clusters.every_epochs",
                "must be less than train.epochs: the images would never be clustered",
                str(clusters.every_epochs),
                f"at most {context.epochs - 1}" if context.epochs > 1 else "",
            )

    def resolve(self, context: RegularizerContext) -> "ResolvedDAR":
        """Choose the share, the estimator and the clusters."""
        clusters = UNUSED_CLUSTERS
        if self.labels == "cluster":
            clusters = self.clusters.resolve(context.method, context.train_images)
        automatic = {"estimator": self._estimator}
        return self.without_auto(
            ResolvedDAR, automatic, clusters=clusters, **self.resolved_strength()
        )


class ResolvedDAR(DAR):
    """DAR with its weight or share, its estimator and clusters."""

    weight: Weight | None
    share: Share | None
    estimator: Literal["chain", "unbiased", "full"]
    clusters: ResolvedClusters
