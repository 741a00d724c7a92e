"""Base classes of the settings of regularizers, and their registry."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from dasl_core.spec.base import Auto, SpecModel, problem, shorten
from dasl_core.spec.fields import Weight
from dasl_core.spec.methods import MethodConfig
from dasl_core.spec.problems import FieldProblem, Problems

PairLabels = Literal["instance", "cluster", "class"]
Share = Annotated[float, Field(gt=0, le=100)]
Slices = Annotated[int, Field(ge=1, le=65_536)]

# Of the loss's gradient: enough to change the training, without outweighing the method (docs/regularizers.md).
DEFAULT_SHARE = 0.1

# Largest tensor of a regularizer on random directions: 1 GB in float32; a step holds a few of them.
PROJECTION_LIMIT = 2**28


class RegularizerContext(NamedTuple):
    """Facts for checking and resolving the settings of a regularizer.

    Attributes:
        embeddings: number of embeddings of a global batch: those of all samples and global views.
        train_images: number of training images.
    """

    method: MethodConfig
    embeddings: int
    train_images: int
    epochs: int
    micro_batches: int


class RegularizerConfig(SpecModel):
    """The settings that every regularizer has."""

    name: ClassVar[str]
    """Name of the module, and of the loss term `loss_NAME`."""
    top_level: ClassVar[bool] = False
    """Whether the settings are a top-level part of the spec rather than in `regularizers`."""

    weight: Weight | Auto | None = "auto"
    """Factor on the term. 0 leaves the run bit-identical to one without it. "auto": chosen by `share`."""
    share: Share | Auto | None = "auto"
    """In place of `weight`: the norm of the term's gradient relative to that of the method's loss, at the outputs of
    the backbone. The weight with which it has this share is measured in the first epoch in which the backbone
    learns, or in its first 100 steps if that is more, and is then constant; with a schedule it is the weight at the
    end. "auto": 0.1 without `weight`."""

    @model_validator(mode="after")
    def _check_one_strength(self) -> Self:
        if isinstance(self.weight, float) and isinstance(self.share, float):
            path = self.path()
            raise problem(
                f"has no effect beside {path}.weight",
                self.share,
                f"null, or {path}.weight: auto",
                field=f"{path}.share",
            )
        return self

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the settings of a regularizer under their `name`."""
        if "name" in cls.__dict__:
            REGULARIZERS[cls.name] = cls

    @classmethod
    def path(cls) -> str:
        """Return the path of the settings in a spec."""
        return cls.name if cls.top_level else f"regularizers.{cls.name}"

    @property
    def title(self) -> str:
        """Return its name for people."""
        return self.name.upper() if self.top_level else self.name

    @property
    def active(self) -> bool:
        """Whether the term adds to the loss."""
        return self.weight != 0

    @property
    def pair_labels(self) -> PairLabels:
        """Kind of labels whose difference makes two embeddings a pair."""
        return "instance"

    @property
    def weight_schedule(self) -> Literal["constant", "linear", "cosine"]:
        """Schedule of the weight over the training."""
        return "constant"

    def check(self, context: RegularizerContext) -> list[FieldProblem]:
        """Return the problems that prevent the regularizer from being used in a job."""
        problems = Problems()
        if context.micro_batches > 1 and not isinstance(self.weight, float):
            problems.add(
                f"{self.path()}.weight",
                "must be given with train.micro_batches > 1, where gradient shares are not measured",
                shorten(self.weight),
                "a number, or train.micro_batches: 1",
            )
        return problems

    def resolve(self, context: RegularizerContext) -> "RegularizerConfig":
        """Return the settings without "auto"."""
        return self.model_copy(update=self.resolved_strength())

    def resolved_strength(self) -> dict[str, float | None]:
        """Return the weight and the share, of which one is None."""
        if isinstance(self.weight, float):
            return {"weight": self.weight, "share": None}
        return {
            "weight": None,
            "share": self.share if isinstance(self.share, float) else DEFAULT_SHARE,
        }


REGULARIZERS: dict[str, type[RegularizerConfig]] = {}
"""The settings of every regularizer, by its name."""


class PairConfig(RegularizerConfig):
    """A regularizer that pushes normalized embeddings with different labels apart."""

    labels: Literal["instance", "class"] = "instance"
    """Which embeddings are pushed apart: those of different images ("instance") or of different classes of
    the data set ("class")."""

    @property
    def pair_labels(self) -> PairLabels:
        return self.labels


class SlicedConfig(RegularizerConfig):
    """A regularizer of the projections of raw embeddings on random directions, for each view."""

    numbers_per_projection: ClassVar[int] = 1
    """Number of values held in memory for each projection of an embedding."""

    slices: Slices

    def check(self, context: RegularizerContext) -> list[FieldProblem]:
        problems = super().check(context)
        most = PROJECTION_LIMIT // (context.embeddings * self.numbers_per_projection)
        if self.slices > most:
            message = f"takes too much memory for the {context.embeddings:,} embeddings of a batch"
            field = f"{self.path()}.slices"
            problems.append(FieldProblem(field, message, str(self.slices), f"at most {most:,}"))
        return problems
