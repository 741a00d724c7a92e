"""Settings of the regularizers: difference alignment (DAR) and spherical embedding (SEC)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dasl_core.spec.base import Auto, SpecModel, problem
from dasl_core.spec.fields import ClusterCount, PositiveInt, Weight


class Clusters(SpecModel):
    """Where the labels of cluster-used DAR come from."""

    source: Literal["kmeans", "prototypes"] | Auto = Field(
        "auto",
        description=(
            'For `labels: cluster`. "kmeans" clusters the embeddings of the last epoch; '
            '"prototypes" uses the method\'s own prototypes (swav). "auto": "prototypes" for '
            'swav, else "kmeans".'
        ),
    )
    k: ClusterCount | Auto = Field(
        "auto",
        description=(
            'Number of k-means clusters. "auto": the square root of the number of training '
            "images, from 2 to 10,000; 2 if clusters are not used."
        ),
    )
    metric: Literal["spherical", "euclidean"] = Field(
        "spherical", description="k-means by cosine, or by Euclidean distance of raw embeddings."
    )
    every_epochs: PositiveInt = Field(
        1,
        description=(
            "Epochs between two runs of k-means; must be less than `train.epochs`. Until the "
            "first run, each image is its own cluster. Later, the same holds for images that were "
            "not part of the clustered epoch, those of the incomplete last batch."
        ),
    )


class DAR(SpecModel):
    """Difference alignment regularization (Chen et al., ICLR 2024), added to the method's loss."""

    weight: Weight | Auto = Field(
        "auto",
        description=(
            "The factor lambda. 0 leaves the run bit-identical to one without DAR. "
            '`reduction: sum` requires a number. "auto": 0.5 for `difference: distance`; '
            "otherwise 0.003 for `norm: l1`, and 0.03 for `l2` and `sq_l2`."
        ),
    )
    labels: Literal["instance", "cluster", "class"] = Field(
        "instance",
        description=(
            'Which samples may form a pair: those of different images ("instance", the '
            'paper\'s cluster-free), of different clusters ("cluster", cluster-used), or of '
            'different classes of the data set ("class", supervised). Two views of one image '
            "never form a pair."
        ),
    )
    clusters: Clusters = Field(
        default_factory=Clusters, description="Settings for `labels: cluster`."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description=(
            "Schedule of the weight over the training: constant, or growing from 0 to `weight` "
            "linearly or along half a cosine."
        ),
    )
    norm: Literal["l1", "l2", "sq_l2"] = Field(
        "l1",
        description=(
            "G, the norm that measures how far apart two differences are. `sq_l2` is not a "
            "norm; it is meant for ablations. `l2` of elementwise differences takes time "
            "quadratic in the batch."
        ),
    )
    difference: Literal["abs", "signed", "distance"] = Field(
        "distance",
        description=(
            'The difference of a pair: "abs" is the absolute difference of each coordinate, '
            '"signed" the signed one, "distance" the Euclidean distance, a single number, for '
            "which `l1` and `l2` are the same."
        ),
    )
    estimator: Literal["chain", "unbiased", "full"] = Field(
        "chain",
        description=(
            '"chain" takes consecutive pairs of a random order of the batch, as in the paper. '
            '"unbiased" reweights its column pairs, those that share a sample and those that '
            'do not, to their frequencies among all pairs of the batch. "full" takes all '
            "pairs, of at most 1,024 embeddings, or 128 with `norm: l2` and elementwise "
            "differences."
        ),
    )
    reduction: Literal["mean", "sum"] = Field(
        "mean",
        description=(
            '"mean" divides by the number of column pairs, so that a weight has the same '
            'meaning at every batch size. "sum" is the literal form of the paper.'
        ),
    )
    normalize: bool = Field(
        True,
        description=(
            "L2-normalize embeddings first. Without it, shrinking all norms drives the term "
            "to 0, which risks collapse unless the loss itself fixes the scale of the embeddings."
        ),
    )

    @model_validator(mode="after")
    def _check_weight_of_sum(self) -> Self:
        if self.weight == "auto" and self.reduction == "sum":
            raise problem(
                "has no default with dar.reduction: sum, where the term grows with the square of the batch",
                self.weight,
                "a number",
                field="dar.weight",
            )
        return self


class SEC(SpecModel):
    """Spherical embedding constraint (Zhang et al., NeurIPS 2020) on the raw embedding norms."""

    weight: Weight | Auto = Field(
        "auto",
        description=(
            "The factor eta. The authors multiply their contrastive loss by temperature/0.07, and "
            "`simclr` here does not: divide their eta by this factor (7.14 at temperature 0.5). "
            '"auto": 0.5 for `target: mean`; 0.0001 for `target: zero`, the value of the SEC authors\' '
            "README for L2 regularization."
        ),
    )
    target: Literal["mean", "zero"] = Field(
        "mean",
        description=(
            "The value that all norms are pulled to: their mean, or 0, which is plain L2 "
            "regularization."
        ),
    )
    momentum: float = Field(
        1.0,
        gt=0,
        le=1,
        description="rho of the moving average of the mean norm; 1 uses the mean of the batch.",
    )
    ramp: bool | Auto = Field(
        "auto",
        description=(
            'Increase the weight linearly from 0 over the whole training. "auto": true for '
            "self-supervised methods, as the authors do, false for supervised ones."
        ),
    )
