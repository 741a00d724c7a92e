"""Base classes of the settings of regularizers, and their registry."""

from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import Field

from dasl_core.spec.base import Auto, SpecModel
from dasl_core.spec.fields import Weight
from dasl_core.spec.methods import MethodConfig
from dasl_core.spec.problems import FieldProblem

PairLabels = Literal["instance", "cluster", "class"]
Slices = Annotated[int, Field(ge=1, le=65_536)]

# The largest tensor of a regularizer on random directions: 1 GB in float32, of which a step holds a few.
PROJECTION_LIMIT = 2**28


class RegularizerContext(NamedTuple):
    """Facts that the settings of a regularizer are checked and resolved with.

    Attributes:
        embeddings: of a global batch that regularizers see: those of all samples and global views.
        train_images: images to train on.
    """

    method: MethodConfig
    embeddings: int
    train_images: int
    epochs: int


class RegularizerConfig(SpecModel):
    """The settings that every regularizer has."""

    name: ClassVar[str]
    """That of its module, and of its term: `loss_NAME`."""
    top_level: ClassVar[bool] = False
    """Whether its settings are a part of the spec, and not of the part `regularizers`."""

    weight: Weight | Auto

    @classmethod
    def path(cls) -> str:
        """Return where its settings are in a spec."""
        return cls.name if cls.top_level else f"regularizers.{cls.name}"

    @property
    def title(self) -> str:
        """Return its name for people."""
        return self.name.upper() if self.top_level else self.name

    @property
    def active(self) -> bool:
        """Whether the term adds anything to the loss."""
        return self.weight != 0

    @property
    def pair_labels(self) -> PairLabels:
        """Which embeddings the term compares as pairs: those with different labels of this kind."""
        return "instance"

    @property
    def weight_schedule(self) -> Literal["constant", "linear", "cosine"]:
        """Schedule of the weight over the training."""
        return "constant"

    def check(self, context: RegularizerContext) -> list[FieldProblem]:
        """Return the problems that prevent the regularizer from being used in a job."""
        return []


class UnmeasuredConfig(RegularizerConfig):
    """A regularizer for which nothing was measured that could be a default weight."""

    weight: Weight = Field(
        description="Factor on the term. 0 leaves the run bit-identical to one without it."
    )


class PairConfig(UnmeasuredConfig):
    """A regularizer that pushes normalized embeddings with different labels apart."""

    labels: Literal["instance", "class"] = Field(
        "instance",
        description=(
            'Which embeddings are pushed apart: those of different images ("instance") or of '
            'different classes of the data set ("class").'
        ),
    )

    @property
    def pair_labels(self) -> PairLabels:
        return self.labels


class SlicedConfig(UnmeasuredConfig):
    """A regularizer of the projections of raw embeddings on random directions, for each view."""

    numbers_per_projection: ClassVar[int] = 1
    """What a projection of an embedding becomes, which is held in memory."""

    slices: Slices

    def check(self, context: RegularizerContext) -> list[FieldProblem]:
        most = PROJECTION_LIMIT // (context.embeddings * self.numbers_per_projection)
        if self.slices <= most:
            return []
        message = f"takes too much memory for the {context.embeddings:,} embeddings of a batch"
        field = f"{self.path()}.slices"
        return [FieldProblem(field, message, str(self.slices), f"at most {most:,}")]


REGULARIZERS: dict[str, type[RegularizerConfig]] = {}
"""The settings of every regularizer, by its name."""

Config = TypeVar("Config", bound=RegularizerConfig)


def register(config: type[Config]) -> type[Config]:
    """Register the settings of a regularizer under their `name`."""
    REGULARIZERS[config.name] = config
    return config
