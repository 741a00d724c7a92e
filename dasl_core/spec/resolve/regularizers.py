"""Resolve DAR, with its clusters, and SEC."""

import math

from dasl_core.default_weights import SEC_WEIGHTS, default_dar_weight
from dasl_core.spec.job import JobSpec
from dasl_core.spec.methods import MethodConfig
from dasl_core.spec.problems import FieldProblem
from dasl_core.spec.regularizers import Clusters
from dasl_core.spec.resolved import ResolvedClusters, ResolvedDAR, ResolvedSEC
from dasl_core.spec.rivals import SIGReg, VISReg

# All pairs of 1,024 embeddings are 524 thousand columns, 268 MB at a width of 128. l2 compares all pairs
# of columns: 128 embeddings have about as many columns as a chain of 8,192.
FULL_LIMIT, FULL_L2_LIMIT = 1024, 128
# Placeholder when clusters are unused, so that a resolved spec has no "auto".
UNUSED_CLUSTERS = ResolvedClusters(source="kmeans", k=2)
# The largest tensor of a regularizer on random directions: 1 GB in float32, of which a step holds a few.
PROJECTION_LIMIT = 2**28
SIGREG_KNOTS = 17  # frequencies at which each projection is evaluated
GLOBAL_VIEWS = 2  # whose embeddings DAR and SEC see; local crops only train the student


def resolve_dar(spec: JobSpec, images: int) -> ResolvedDAR | None:
    if spec.dar is None:
        return None
    weight = spec.dar.weight
    if weight == "auto":
        weight = default_dar_weight(spec.dar.norm, spec.dar.difference)
    clusters = UNUSED_CLUSTERS
    if spec.dar.labels == "cluster":
        clusters = resolve_clusters(spec.dar.clusters, spec.method, images)
    return spec.dar.narrow(ResolvedDAR, clusters=clusters, weight=weight)


def resolve_clusters(clusters: Clusters, method: MethodConfig, images: int) -> ResolvedClusters:
    source = clusters.source
    if source == "auto":
        source = "prototypes" if method.has_prototypes else "kmeans"
    k = choose_k(images) if clusters.k == "auto" else clusters.k
    return clusters.narrow(ResolvedClusters, source=source, k=k)


def choose_k(images: int) -> int:
    """Clusters for a data set of this size: the square root of it, from 2 to 10,000.

    Our choice; the sources on DAR at hand give none. It is 72 for 5 thousand images, 356 for ImageNet-100 and
    1,132 for ImageNet, between its classes and the ten times as many that served DeepCluster best
    (Caron et al., ECCV 2018: 10,000 for 1.3 million), and each cluster holds as many images as there
    are clusters. DAR only needs the images of a cluster to be alike, so too many clusters do little harm.
    """
    return min(10_000, max(2, round(math.sqrt(images))))


def resolve_sec(spec: JobSpec) -> ResolvedSEC | None:
    if spec.sec is None:
        return None
    weight, ramp = spec.sec.weight, spec.sec.ramp
    if weight == "auto":
        weight = SEC_WEIGHTS[spec.sec.target]
    if ramp == "auto":
        ramp = not spec.method.supervised
    return spec.sec.narrow(ResolvedSEC, weight=weight, ramp=ramp)


def check_sec(spec: JobSpec, problems: list[FieldProblem]) -> None:
    """Check that SEC regularizes norms of embeddings whose directions the loss compares."""
    if spec.sec is not None and not spec.method.compares_directions:
        problems.append(
            FieldProblem(
                "sec",
                "equalizes the norms of embeddings for a loss that compares their directions; that "
                f"of {spec.method.name} does not",
                "",
                "null, or a method that compares directions, such as 'simclr'",
            )
        )


def check_dar(spec: JobSpec, batch: int, problems: list[FieldProblem]) -> None:
    """Check that the pairs that DAR compares fit in memory."""
    dar = spec.dar
    if dar is None:
        return
    embeddings = batch * min(spec.method.num_views, GLOBAL_VIEWS)
    most = FULL_L2_LIMIT if dar.norm == "l2" and dar.difference != "distance" else FULL_LIMIT
    if dar.estimator == "full" and embeddings > most:
        problems.append(
            FieldProblem(
                "dar.estimator",
                f"compares all pairs of the {embeddings:,} embeddings of a batch",
                "'full'",
                f"'chain' or 'unbiased', or at most {most:,} embeddings",
            )
        )


def check_rivals(spec: JobSpec, batch: int, problems: list[FieldProblem]) -> None:
    """Check that the projections on random directions fit in memory."""
    embeddings = batch * min(spec.method.num_views, GLOBAL_VIEWS)
    for name, rival in spec.rivals.active().items():
        if not isinstance(rival, SIGReg | VISReg):
            continue
        numbers = embeddings * (SIGREG_KNOTS if isinstance(rival, SIGReg) else 1)
        if numbers * rival.slices > PROJECTION_LIMIT:
            problems.append(
                FieldProblem(
                    f"rivals.{name}.slices",
                    f"takes too much memory for the {embeddings:,} embeddings of a batch",
                    str(rival.slices),
                    f"at most {PROJECTION_LIMIT // numbers:,}",
                )
            )
