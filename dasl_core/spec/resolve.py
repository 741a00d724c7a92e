"""From "auto" to numbers: a pure function of the spec and the data set's facts.

What it decides is recorded with the job, so that a run can be repeated and its settings read.
"""

from pydantic import Field

from dasl_core.spec.backbones import BACKBONES
from dasl_core.spec.base import Part
from dasl_core.spec.errors import FieldProblem, SpecError
from dasl_core.spec.job import Backbone, Evaluate, JobSpec, Optimizer, Train

# Largest image a "small" stem is chosen for. 64: at timm's stride 32 an image of 64 pixels leaves
# a last feature map of 2x2, the least that still has an inside.
SMALL_STEM_UP_TO = 64
# A ViT with a small stem sees 8x8 patches, as ViTs on CIFAR (patch 4 at 32 pixels) commonly do.
SMALL_STEM_PATCHES = 8
# Peak learning rate at a global batch of 256, scaled linearly with the batch (Goyal et al. 2017).
# sgd: lightly's CIFAR SimCLR (0.06 at 128). lars: SimCLR's 0.3. adamw: MoCo v3's ViT 1.5e-4 is for
# 300 epochs at 4096; 5e-4 is the usual for ViTs at 256 (DINO, DeiT).
BASE_LR = {"sgd": 0.12, "lars": 0.3, "adamw": 5e-4}
WEIGHT_DECAY = {"sgd": 5e-4, "lars": 1e-6, "adamw": 0.05}


class DatasetFacts(Part):
    """What is known of a registered data set once it is ingested."""

    num_images: int = Field(ge=1)
    num_classes: int | None = Field(description="null: the folder has no labels.")
    median_size: int = Field(ge=1, description="Median of the images' shorter side, in pixels.")


class Estimate(Part):
    """What a resolved job will cost, as far as it can be known without running it."""

    train_images: int
    steps_per_epoch: int
    total_steps: int
    backbone_parameters: int
    state_bytes_per_worker: int = Field(
        description="Weights, gradients and optimizer state of the backbone; no activations."
    )


def resolve(spec: JobSpec, facts: DatasetFacts) -> JobSpec:
    """The same spec with every "auto" replaced by a number or a name.

    Raises:
        SpecError: the spec cannot run on this data set.
    """
    problems: list[FieldProblem] = []
    backbone = _backbone(spec.backbone, facts, problems)
    train = _train(spec, facts, problems)
    evaluate = _evaluate(spec, facts, train, problems)
    blur = spec.augment.blur
    if blur == "auto":
        blur = 0.5 if int(backbone.image_size) > SMALL_STEM_UP_TO else 0.0
    hidden = spec.method.hidden_dim
    if hidden == "auto":
        hidden = BACKBONES[backbone.name].features
    if problems:
        raise SpecError(problems)
    return spec.model_copy(
        update={
            "backbone": backbone,
            "train": train,
            "evaluate": evaluate,
            "augment": spec.augment.model_copy(update={"blur": blur}),
            "method": spec.method.model_copy(update={"hidden_dim": hidden}),
        }
    )


def estimate(resolved: JobSpec, facts: DatasetFacts) -> Estimate:
    """Steps, parameters and state size of a spec that `resolve` returned."""
    images = training_images(resolved, facts)
    steps = images // int(resolved.train.batch_size)
    parameters = BACKBONES[resolved.backbone.name].parameters
    # float32 weight and gradient, and one moment (SGD, LARS) or two (AdamW).
    floats = 4 if resolved.train.optimizer.name == "adamw" else 3
    return Estimate(
        train_images=images,
        steps_per_epoch=steps,
        total_steps=steps * resolved.train.epochs,
        backbone_parameters=parameters,
        state_bytes_per_worker=4 * floats * parameters,
    )


def training_images(spec: JobSpec, facts: DatasetFacts) -> int:
    """Images left for training; exact, but for whole classes held out, where it is the mean."""
    if spec.evaluate.dataset is not None:
        return facts.num_images
    return facts.num_images - round(facts.num_images * spec.evaluate.holdout.fraction)


def _backbone(backbone: Backbone, facts: DatasetFacts, problems: list[FieldProblem]) -> Backbone:
    info = BACKBONES[backbone.name]
    given = backbone.image_size
    size = _fitting_size(facts) if isinstance(given, str) else given
    stem = backbone.stem
    if stem == "auto":
        stem = "small" if size <= SMALL_STEM_UP_TO else "standard"
    if info.patch_size is not None:
        patch = SMALL_STEM_PATCHES if stem == "small" else info.patch_size
        fitting = max(1, size // patch) * patch
        if given == "auto":
            size = fitting
        elif size != fitting:
            problems.append(
                FieldProblem(
                    "backbone.image_size",
                    f"must be divisible by {patch} for {backbone.name} with its {stem} stem",
                    str(size),
                    f"such as {fitting}",
                )
            )
    return backbone.model_copy(update={"image_size": size, "stem": stem})


def _fitting_size(facts: DatasetFacts) -> int:
    return max(32, min(224, facts.median_size // 32 * 32))


def _fitting_batch(images: int, workers: int) -> int:
    per_worker = min(256, images // 8) // workers
    return workers * max(per_worker, 2 if workers == 1 else 1)


def _train(spec: JobSpec, facts: DatasetFacts, problems: list[FieldProblem]) -> Train:
    train, workers = spec.train, spec.resources.workers
    images = training_images(spec, facts)
    batch = train.batch_size
    if isinstance(batch, str):
        batch = _fitting_batch(images, workers)
    if batch > images:
        problems.append(
            FieldProblem(
                "train.batch_size",
                f"is larger than the {images} images that the data set leaves for training",
                str(batch),
                f"at most {images}",
            )
        )
    precision = train.precision
    if precision == "auto":
        precision = "bf16" if spec.resources.gpus_per_worker else "fp32"
    tenth = max(1, round(train.epochs / 10))
    return train.model_copy(
        update={
            "batch_size": batch,
            "precision": precision,
            "optimizer": _optimizer(train.optimizer, spec.backbone, batch),
            "warmup_epochs": (
                min(10.0, train.epochs / 10)
                if train.warmup_epochs == "auto"
                else train.warmup_epochs
            ),
            "checkpoint_every_epochs": (
                tenth if train.checkpoint_every_epochs == "auto" else train.checkpoint_every_epochs
            ),
        }
    )


def _optimizer(optimizer: Optimizer, backbone: Backbone, batch: int) -> Optimizer:
    name = optimizer.name
    if name == "auto":
        if BACKBONES[backbone.name].family == "vit":
            name = "adamw"
        else:
            name = "sgd" if batch <= 1024 else "lars"
    lr = BASE_LR[name] * batch / 256 if optimizer.lr == "auto" else optimizer.lr
    decay = WEIGHT_DECAY[name] if optimizer.weight_decay == "auto" else optimizer.weight_decay
    return optimizer.model_copy(update={"name": name, "lr": lr, "weight_decay": decay})


def _evaluate(
    spec: JobSpec, facts: DatasetFacts, train: Train, problems: list[FieldProblem]
) -> Evaluate:
    evaluate = spec.evaluate
    if evaluate.dataset is None and evaluate.holdout.by == "class":
        classes = facts.num_classes or 0
        held_out = round(classes * evaluate.holdout.fraction)
        if classes < 2 or not 0 < held_out < classes:
            problems.append(
                FieldProblem(
                    "evaluate.holdout.by",
                    f"the data set has {classes or 'no'} classes, of which "
                    f"{evaluate.holdout.fraction} cannot be held out whole",
                    "'class'",
                    "'image', or a data set whose folders are at least two classes",
                )
            )
    every = evaluate.every_epochs
    if every == "auto":
        every = max(1, round(train.epochs / 10))
    return evaluate.model_copy(update={"every_epochs": every})
