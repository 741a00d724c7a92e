"""Settings of the evaluations on held-out images."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from dasl_core.spec.base import Auto, SpecModel, problem
from dasl_core.spec.fields import CropShare, Name, PositiveInt, Rate
from dasl_core.spec.source import Column

# If no repeat is inside another, a search takes at most some n^(1 + repeats) / (1 + repeats)! * 2^choices steps, with
# n characters: with this cost at most some 10^9, which is seconds.
SEARCHED_CHARACTERS = 256
_COST_OF_REPEAT, _MOST_COST = 6, 20
# What is not syntax: escaped characters and sets.
_LITERALS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_OPENING = re.compile(r"\(\?(?::|=|!|<=|<!|P<\w+>)")
_REPEAT = re.compile(r"(?:[*+]|\{\d*,\d*\})[?+]?")

Neighbors = Annotated[int, Field(ge=1, le=10_000)]


class Knn(SpecModel):
    """Weighted k-nearest-neighbor classification of held-out images (Wu et al. 2018)."""

    k: (
        Neighbors
        | Annotated[tuple[Neighbors, ...], Field(min_length=1, max_length=10, fail_fast=True)]
    ) = 20
    """Number of neighbors that vote. Of several numbers, in one pass, the first gives `knn_top1`, and each other K
    `knn_top1_kK`."""
    temperature: float = Field(0.07, ge=1e-3, le=1000)
    """A vote has the weight exp(similarity / temperature)."""
    bank: PositiveInt | None = None
    """Maximum of training images in the bank, where neighbors are searched; of more, every second, third, and
    so on, is taken. null: all training images. Every evaluation computes their features again, and the ranks
    together store 4 bytes per feature and image: 10 GB for ImageNet and a ResNet-50."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Every number of neighbors, the first of which gives `knn_top1`."""
        return self.k if isinstance(self.k, tuple) else (self.k,)


class GroupRule(SpecModel):
    """Groups of images that must be on one side, such as those of a patient, a plate or a sequence: one of the fields.

    An image without a group counts as one of its own."""

    folder: int | None = Field(None, ge=1, le=20)
    """Number of folder levels of the path, from the first, that name the group."""
    column: Column | None = None
    """Column of the source with the group; the data set must be registered with it (`--group-column`)."""
    pattern: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Regular expression with one group in parentheses, which is searched in the first 256 characters of the path.
    So that no search takes long, no group is repeated, and there are at most three repeats (`*`, `+`, `{1,3}`), of
    which each takes the place of six of at most twenty optional parts (`?`) and alternatives (`|`)."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        expected = r"a regular expression with one group, such as 'patient_(\\d+)'"
        try:
            groups = re.compile(pattern).groups
        except (re.error, RecursionError, OverflowError) as error:
            raise problem(f"is no regular expression: {error}", pattern, expected) from None
        if groups != 1:
            raise problem(f"has {groups} groups in parentheses", pattern, expected)
        syntax = _OPENING.sub("(", _LITERALS.sub("x", pattern))
        if "(?" in syntax:
            expected = "groups that begin with (, (?:, (?=, (?!, (?<=, (?<! or (?P<name>"
            raise problem("has a group of another kind", pattern, expected)
        if _REPEATED_GROUP.search(syntax):
            expected = "a repeat inside of it, such as '([ab]+)'"
            raise problem("repeats a group, which can take forever", pattern, expected)
        rest, repeats = _REPEAT.subn("", syntax)
        choices = rest.count("?") + rest.count("|")
        if _COST_OF_REPEAT * repeats + choices > _MOST_COST:
            message = f"has {repeats} repeats and {choices} optional parts and alternatives, which can take long"
            raise problem(
                message, pattern, "at most 3 repeats, and with fewer of them more of the others"
            )
        return pattern

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            shown = " and ".join(given) or "none"
            raise problem("needs one rule", shown, "folder, column or pattern")
        return self

    def describe(self) -> str:
        """Describe the rule, to continue a sentence."""
        if self.folder is not None:
            return "the first folder" if self.folder == 1 else f"the first {self.folder} folders"
        return f"the {'column' if self.column else 'pattern'} {self.column or self.pattern!r}"


class Holdout(SpecModel):
    """Images kept out of training, to evaluate on. Drawn by a hash: the same in every run."""

    fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the images, or of the classes, that is kept out of training."""
    by: Literal["image", "class", "group"] = "image"
    """ "image" keeps the near-duplicates that the ingest has found on one side. "class" holds out whole classes:
    retrieval is then zero-shot, and there is no k-NN accuracy, linear probe or fine-tuning. "group" holds out
    whole groups, at least one, until the fraction of the images is reached."""
    group: GroupRule | None = None
    """What a group is, with `by: group`."""

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.by == "group" and self.group is None:
            raise problem("by: group needs the field group", "none", "such as group: {folder: 1}")
        if self.by != "group" and self.group is not None:
            raise problem("group has no effect without by: group", f"by: {self.by}", "by: group")
        return self


class KMeans(SpecModel):
    """k-means of held-out images with one cluster per class."""

    restarts: int = Field(10, ge=1, le=1000)
    """How often k-means starts from other centers; the clusters with the smallest sum of squared distances to
    their centers count."""


class LinearProbe(SpecModel):
    """A linear classifier on frozen features, one for each learning rate, trained together."""

    epochs: int = Field(100, ge=1, le=10_000)
    """Epochs of training."""
    batch_size: int = Field(256, ge=1, le=1_000_000)
    """Images in a batch."""
    learning_rates: Annotated[
        tuple[Rate, ...], Field(min_length=1, max_length=100, fail_fast=True)
    ] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Learning rates to try, one linear head each."""
    views: Literal["whole", "crops"] = "whole"
    """The training images: "whole" as they are evaluated, with features that are computed once; or "crops" of 8 to
    100 % of the area, flipped and rotated as in `augment` and redrawn in each epoch, which is the published protocol
    and takes a pass over the images for each of the `epochs`."""
    labels: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(max_length=10, fail_fast=True)
    ] = ()
    """Shares of the labels, such as [0.01, 0.1], with each of which the probe is trained again. A share has equally
    many images of each class, by a hash of their names: the same in every run, and part of every larger share."""


class FineTune(SpecModel):
    """Training of the whole network with labels, from the pretrained weights."""

    epochs: int = Field(10, ge=1, le=10_000)
    """Epochs of training."""
    batch_size: int = Field(128, ge=2, le=1_000_000)
    """Global batch: all ranks together; at least `resources.workers`."""
    lr: Rate = 0.001
    """Peak learning rate of AdamW."""


class Evaluate(SpecModel):
    """Evaluations on held-out images, during training and after it."""

    dataset: Name | None = None
    """Another registered data set to evaluate on; must differ from `dataset`, and have the same number of
    bands and units of values. null: hold out images of the training set."""
    holdout: Holdout | None = Field(default_factory=Holdout)
    """Images of the training set to evaluate on. null: train on all of them; then nothing is measured but the
    loss and the embeddings of the batches."""
    on: Literal["backbone", "embedding"] | Auto = "auto"
    """ "embedding" evaluates the L2-normalized embedding of a supervised method, and the backbone in addition.
    "auto": "embedding" for supervised methods, else "backbone"."""
    crop_pct: CropShare | Auto = "auto"
    """Side of the central square that is evaluated, as a share of the image's shorter side; timm has the same
    setting. 0.875 is Resize 256 and CenterCrop 224, and 1 the largest central square. It is also the crop of
    the exported preprocessing. "auto": 0.875 if `backbone.image_size` is 128 or more, as published for
    ImageNet; 1 for smaller images, as for CIFAR."""
    knn: Knn | None = Field(default_factory=Knn)
    """k-NN classification. null: off. Needs labels."""
    linear: LinearProbe | bool = False
    """Linear probe after the last epoch: softmax regression on frozen features of all training images, with
    one head for each learning rate, trained together; a tenth of the training images selects the rate. true:
    with the defaults below. Needs labels."""
    finetune: FineTune | bool = False
    """Fine-tuning after the last epoch: a copy of the network and a linear head, trained with AdamW on crops
    and flips. true: with the defaults below. Needs labels."""
    clustering: KMeans | bool = False
    """NMI and pairwise F1 of k-means with one cluster per class, on held-out images. true: with the defaults
    below. Needs labels."""
    retrieval: tuple[PositiveInt, ...] = Field((1, 5), max_length=100, fail_fast=True)
    """The values of K for R@K; [] for none. Needs labels."""
    gallery: Name | None = None
    """Name of a folder inside each class folder, such as gallery: R@K searches the images in it for the
    neighbors of all other held-out images, the queries. null: each held-out image is a query, and the others
    are its neighbors."""
    verification: Annotated[int, Field(ge=20, le=2_000_000)] | None = None
    """Number of pairs of held-out images, half of one class and half of two, to verify by a threshold, as with
    LFW: 60,000 are enough for TAR at a FAR of 0.001. null: off. Needs labels."""
    every_epochs: PositiveInt | Auto = "auto"
    """Epochs between evaluations. Raw pixels (at most 32 a side, if there are labels) and the initial
    backbone are evaluated before the first step, and the backbone always after the last epoch. "auto": a
    tenth of the epochs, rounded up."""
