"""JobSpec: the settings of a pretraining job, and their defaults."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dasl_core.spec.augment import Augment
from dasl_core.spec.backbone import Backbone
from dasl_core.spec.base import Auto, SpecModel, problem
from dasl_core.spec.errors import closest
from dasl_core.spec.evaluate import Evaluate
from dasl_core.spec.fields import (
    CpuCount,
    LabelKey,
    LabelValue,
    MetricName,
    Name,
    NodeName,
    PositiveInt,
    Tag,
)
from dasl_core.spec.methods import METHODS, MethodSettings
from dasl_core.spec.methods.simclr import SimCLR
from dasl_core.spec.recipes import RecipeName
from dasl_core.spec.regularizers import DAR, SEC, RegularizerConfig, Regularizers
from dasl_core.spec.track import Track
from dasl_core.spec.train import Train


class Checkpoints(SpecModel):
    """Checkpoints by time, and their retention. The newest, the final one and pinned ones are always kept."""

    every_minutes: float | None = Field(15.0, ge=0.1, le=100_000)
    """How many minutes of work a crash may cost: after so long without a checkpoint, one is saved within the
    epoch, and removed once there are two newer ones. null: only at the ends of epochs, see
    `train.checkpoint_every_epochs`."""
    keep_last: PositiveInt | None = None
    """How many of the newest checkpoints at the ends of epochs to keep. null: all."""
    keep_best: int = Field(0, ge=0, le=1000)
    """How many of the others to keep: the best ones by `best_by`, which is compared as the newest evaluation
    measured it when a checkpoint was saved."""
    best_by: MetricName | None = None
    """The metric of evaluations by which checkpoints are the best ones, with its own direction: one that
    `train.stop.metric` accepts, too. null: `knn_top1`, or `recall_at_1` if there is none."""


class Resources(SpecModel):
    """Ranks, their CPUs, GPUs and nodes, and time limit of a job.

    "auto" is decided once: GPUs when a job is submitted, if there are any then, and else, with the CPUs, when it first
    starts.
    """

    workers: int = Field(1, ge=1, le=4096)
    """Number of ranks."""
    min_workers: int | None = Field(None, ge=1, le=4096)
    """The fewest ranks with which a job that has run before resumes if the nodes that are left have no room
    for all `workers`: with the largest number that divides the batch, and the same global batch. Its next
    attempt may have more again. null: it waits for nodes."""
    gpus_per_worker: Literal[0, 1] | Auto = "auto"
    """A rank uses one GPU, or CPUs only. 0 trains on CPUs even if there are GPUs. "auto": 1 if a node that
    the job may use has a GPU when it is submitted or when it first starts, and the quotas of its token and
    tenant allow any, else 0; later attempts keep it. If the quotas allow some, but fewer than `workers`, the
    job is refused."""
    cpus_per_worker: CpuCount | Auto = "auto"
    """CPUs that a rank reserves; also its number of threads for torch and for decoding images. "auto": its
    share of a node, chosen when the job first starts: the CPUs of the smallest node that it may use (nodes
    with less than half the share of others do not count), divided by the node's GPUs or by the ranks that
    must share it; at most 16 with a GPU and 64 without. Later attempts have the same."""
    memory_gb_per_worker: float | None = Field(None, gt=0, le=100_000)
    """Memory that a rank reserves on its node, in GB of 10^9 bytes. Ray counts such reservations and does not
    limit what a rank uses. null: none."""
    gpu_type: LabelValue | None = None
    """Only nodes with GPUs of this type, as Ray names it, such as H100: the label `ray.io/accelerator-type`.
    null: any, and possibly several."""
    node_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=20)
    """Only nodes with all of these labels, as given to `ray start --labels`."""
    same_node: bool = False
    """All ranks on one node."""
    exclude_nodes: list[NodeName] = Field(default_factory=list, max_length=100)
    """Nodes that get no rank, by id, name or address."""
    max_restarts: int = Field(3, ge=0, le=1000)
    """How often a job is retried after an attempt that failed or disappeared. Failures of the infrastructure,
    such as the loss of a node, do not count."""
    max_hours: float = Field(24.0, gt=0, le=100_000)
    """Time limit for all attempts of the job together, at which it saves a checkpoint and is paused; the
    limit can be raised later. Pauses, waiting, and gaps of more than two minutes between heartbeats do not
    count. A low limit lets a job start in gaps that a long job must leave free for a large one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_workers is not None and self.min_workers > self.workers:
            raise problem(
                f"is more than resources.workers, which is {self.workers}",
                self.min_workers,
                f"at most {self.workers}",
                field="resources.min_workers",
            )
        if self.gpu_type is not None and self.gpus_per_worker == 0:
            raise problem(
                "is the type of a GPU, and resources.gpus_per_worker is 0",
                self.gpu_type,
                "null, or resources.gpus_per_worker: 1",
                field="resources.gpu_type",
            )
        return self


NOT_ITS_DATASET = "must differ from `dataset`: the model would be evaluated on its training images"
ANOTHER_DATASET = "another data set, or null to hold images out"


class JobSpec(SpecModel):
    """A pretraining job. Unknown keys are refused; every error names its field."""

    name: Name = "pretraining"
    """A label for people; need not be unique. No slashes."""
    dataset: Name
    """Id or name of a registered data set, or NAME@NUMBER for one of its versions."""
    recipe: RecipeName | Auto = "auto"
    """Which settings stand behind "auto" in all other fields. "small": those for few images on one machine,
    which the fields describe. "authors": those of the method's authors, where they differ. "continue": those
    for a start from weights. "auto": "continue" for a self-supervised method with `backbone.pretrained`, else
    "small"."""
    method: MethodSettings = Field(default_factory=SimCLR)
    backbone: Backbone = Field(default_factory=Backbone)
    augment: Augment = Field(default_factory=Augment)
    dar: DAR | None = None
    """Difference alignment. null: off; {}: on, with the defaults below."""
    sec: SEC | None = None
    """Spherical embedding constraint. null: off; {}: on, with the defaults below."""
    regularizers: Regularizers = Field(default_factory=Regularizers)
    train: Train = Field(default_factory=Train)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    resources: Resources = Field(default_factory=Resources)
    track: Track = Field(default_factory=Track)
    priority: int = Field(0, ge=-1000, le=1000)
    """Among waiting jobs, the one with the highest priority starts first."""
    preemptible: bool = False
    """Whether the job gives way: it starts after all jobs that are not preemptible, and when one of them
    lacks room, it saves a checkpoint and returns to the queue, but not before it has run for ten minutes."""
    tags: dict[Tag, Tag] = Field(default_factory=dict, max_length=50)
    """Labels for filters, such as `dasl jobs --tag team:vision`. Keys and values have 1 to 63 characters."""

    def given_regularizers(self) -> dict[str, RegularizerConfig]:
        """Return the regularizers that are not null, by name: DAR, SEC, then the others."""
        given = {"dar": self.dar, "sec": self.sec, **dict(self.regularizers)}
        return {name: settings for name, settings in given.items() if settings is not None}

    def active_regularizers(self) -> dict[str, RegularizerConfig]:
        """Return the regularizers that add to the loss, by name."""
        given = self.given_regularizers()
        return {name: settings for name, settings in given.items() if settings.active}

    @field_validator("method", mode="before")
    @classmethod
    def _check_method(cls, method: Any) -> Any:
        if not isinstance(method, dict):
            return method
        method = {"name": "simclr"} | method
        name = method["name"]
        if not isinstance(name, str) or name not in METHODS:
            raise problem(
                "is not a known method" + closest(str(name), METHODS),
                name,
                "one of " + ", ".join(METHODS),
                field="method.name",
            )
        return method

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.evaluate.dataset == self.dataset:
            raise problem(NOT_ITS_DATASET, self.dataset, ANOTHER_DATASET, field="evaluate.dataset")
        if self.evaluate.on == "embedding" and not self.method.supervised:
            raise problem(
                f"the embeddings of {self.method.name} only serve its loss",
                "embedding",
                "'backbone', or a supervised method",
                field="evaluate.on",
            )
        dar = self.dar
        if (
            dar is not None
            and dar.labels == "cluster"
            and dar.clusters.source == "prototypes"
            and not self.method.has_prototypes
        ):
            raise problem(
                f"the method {self.method.name} has no prototypes",
                "prototypes",
                "'kmeans', or the method 'swav'",
                field="dar.clusters.source",
            )
        check_batch_divides(self.train.batch_size, self.resources.workers, self.train.micro_batches)
        return self


def check_batch_divides(batch_size: int | str, workers: int, micro_batches: int) -> None:
    """Check that ranks and micro-batches divide a batch evenly, or losses would be wrong."""
    parts = workers * micro_batches
    if isinstance(batch_size, int) and batch_size % parts:
        times = f" x train.micro_batches, which is {parts}" if micro_batches > 1 else ""
        which = times or f", which is {workers}"
        raise problem(
            f"is the global batch and must be divisible by resources.workers{which}",
            batch_size,
            f"a multiple of {parts}, such as {batch_size + parts - batch_size % parts}",
            field="train.batch_size",
        )
