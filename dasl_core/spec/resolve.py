"""From "auto" to numbers: a pure function of the spec and the data set's facts.

What it decides is recorded with the job, so that a run can be repeated and its settings read.
"""

import math
from typing import Literal, NamedTuple

from pydantic import Field

from dasl_core.spec.backbones import BACKBONES
from dasl_core.spec.base import Part
from dasl_core.spec.errors import FieldProblem, SpecError
from dasl_core.spec.job import (
    LARGEST_RATE,
    Augment,
    Backbone,
    Clip,
    Clusters,
    FineTune,
    Holdout,
    JobSpec,
    LinearProbe,
    Optimizer,
)
from dasl_core.spec.methods import Given, MethodPart, MultiCrop
from dasl_core.spec.resolved import (
    ResolvedAugment,
    ResolvedBackbone,
    ResolvedClusters,
    ResolvedDAR,
    ResolvedEvaluate,
    ResolvedJobSpec,
    ResolvedOptimizer,
    ResolvedSEC,
    ResolvedTrain,
)

# Largest image a "small" stem is chosen for. 64: at timm's stride 32 an image of 64 pixels leaves
# a last feature map of 2x2, the least that still has an inside.
SMALL_STEM_UP_TO = 64
# A ViT with a small stem sees 8x8 patches, as ViTs on CIFAR (patch 4 at 32 pixels) commonly do.
SMALL_STEM_PATCHES = 8
# A blur or an inversion of so few pixels leaves nothing to recognise: lightly and solo-learn, too,
# leave both out on CIFAR.
BLUR_FROM = SMALL_STEM_UP_TO + 1
# Peak learning rate at a global batch of 256, scaled linearly with the batch (Goyal et al. 2017).
# sgd: lightly's CIFAR SimCLR (0.06 at 128). lars: SimCLR's 0.3. adamw: MoCo v3's ViT 1.5e-4 is for
# 300 epochs at 4096; 5e-4 is the usual for ViTs at 256 (DINO, DeiT).
BASE_LR = {"sgd": 0.12, "lars": 0.3, "adamw": 5e-4}
# lambda by norm, or for distances, as `benchmarks.sweep` measured it (docs/spec.md): 0.5 is the best of
# five for distances; of l1 no weight around 0.003 could be told from none. l2 and sq_l2 of 128
# coordinates are about a tenth of their l1.
DAR_WEIGHTS = {"l1": 0.003, "l2": 0.03, "sq_l2": 0.03, "distance": 0.5}
# All pairs of 1,024 embeddings are 524 thousand columns, 268 MB at a width of 128. l2 compares each with
# each: 128 embeddings have about the columns of a chain of 8,192.
FULL_LIMIT, FULL_L2_LIMIT = 1024, 128
# Triplets of N images are found in a tensor of N^3 booleans: 1.1 GB.
TRIPLETS_LIMIT = 1024
# What stands where nothing asks for clusters: no "auto" is left, and it is the same for all data.
UNUSED_CLUSTERS = ResolvedClusters(source="kmeans", k=2)
GLOBAL_VIEWS = 2  # whose embeddings DAR and SEC see; local crops only train the student
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


class Chosen(NamedTuple):
    """The choices that others depend on, made before anything is refused.

    Attributes:
        samples_per_class: None where batches are drawn without regard to classes.
        patch_size: of a ViT with its stem, in pixels; None for other networks.
    """

    image_size: int
    stem: Literal["standard", "small"]
    patch_size: int | None
    batch_size: int
    samples_per_class: int | None


def resolve(spec: JobSpec, facts: DatasetFacts) -> ResolvedJobSpec:
    """Return the same spec with every "auto" replaced by a number or a name.

    Raises:
        SpecError: the spec cannot run on this data set.
    """
    problems: list[FieldProblem] = []
    size, stem, patch = _backbone(spec.backbone, facts, problems)
    batch, per_class = _batch(spec, facts, problems)
    chosen = Chosen(size, stem, patch, batch, per_class)
    _check_learning_rate(spec, batch, problems)
    _check_evaluate(spec, facts, problems)
    _check_labels(spec, facts, problems)
    _check_dar(spec, batch, problems)
    _check_triplets(spec, batch, problems)
    _check_ignored(spec, batch, problems)
    _check_local_crops(spec, patch, problems)
    if problems:
        raise SpecError(problems)
    given = Given(
        features=BACKBONES[spec.backbone.name].features,
        image_size=size,
        patch_size=patch,
        train_images=training_images(spec, facts),
        batch_size=batch,
        epochs=spec.train.epochs,
    )
    return spec.narrow(
        ResolvedJobSpec,
        backbone=spec.backbone.narrow(ResolvedBackbone, image_size=size, stem=stem),
        train=_train(spec, chosen),
        evaluate=_evaluate(spec),
        augment=_augment(spec.augment, spec.method, size),
        method=spec.method.resolve(given),
        dar=_dar(spec, given.train_images),
        sec=_sec(spec),
    )


def choose_k(images: int) -> int:
    """Clusters for a data set of this size: the square root of it, from 2 to 10,000.

    Our choice; the papers on DAR give none. It is 72 for 5 thousand images, 356 for ImageNet-100 and
    1,132 for ImageNet, between its classes and the ten times as many that served DeepCluster best
    (Caron et al., ECCV 2018: 10,000 for 1.3 million), and each cluster holds as many images as there
    are clusters. DAR only asks of a cluster that its images are of one kind: too many cost little.
    """
    return min(10_000, max(2, round(math.sqrt(images))))


def estimate(resolved: ResolvedJobSpec, facts: DatasetFacts) -> Estimate:
    """Steps, parameters and state size of a spec that `resolve` returned."""
    images = training_images(resolved, facts)
    steps = images // resolved.train.batch_size
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


def training_classes(spec: JobSpec, facts: DatasetFacts) -> int:
    """Classes left for training; 0 without labels."""
    classes, holdout = facts.num_classes or 0, spec.evaluate.holdout
    if spec.evaluate.dataset is not None or holdout.by == "image":
        return classes
    return classes - round(classes * holdout.fraction)


def _backbone(
    backbone: Backbone, facts: DatasetFacts, problems: list[FieldProblem]
) -> tuple[int, Literal["standard", "small"], int | None]:
    """Choose the image size, the stem, and with it the patch size of a ViT."""
    info = BACKBONES[backbone.name]
    given = backbone.image_size
    size = _fitting_size(facts) if isinstance(given, str) else given
    stem = backbone.stem
    if stem == "auto":
        stem = "small" if size <= SMALL_STEM_UP_TO else "standard"
    patch = info.patch_size
    if patch is not None:
        unit = SMALL_STEM_PATCHES if stem == "small" else patch
        fitting = max(1, size // unit) * unit
        if given == "auto":
            size = fitting
        elif size != fitting:
            problems.append(
                FieldProblem(
                    "backbone.image_size",
                    f"must be divisible by {unit} for {backbone.name} with its {stem} stem",
                    str(size),
                    f"such as {fitting}",
                )
            )
        if stem == "small":
            patch = size // SMALL_STEM_PATCHES
    return size, stem, patch


def _fitting_size(facts: DatasetFacts) -> int:
    return max(32, min(224, facts.median_size // 32 * 32))


def _fitting_batch(images: int, multiple_of: int, least: int) -> int:
    parts = min(256, images // 8) // multiple_of
    return multiple_of * max(parts, math.ceil(least / multiple_of))


def _batch(
    spec: JobSpec, facts: DatasetFacts, problems: list[FieldProblem]
) -> tuple[int, int | None]:
    """Choose the global batch, and how many images of each class it holds."""
    train, workers = spec.train, spec.resources.workers
    images = training_images(spec, facts)
    batch, per_class = train.batch_size, train.samples_per_class
    if per_class == "auto":
        per_class = spec.method.samples_per_class
    if per_class is not None and per_class > images:
        problems.append(
            FieldProblem(
                "train.samples_per_class",
                f"is more than the {images} images that the data set leaves for training",
                str(per_class),
                f"at most {images}",
            )
        )
        per_class = None
    if isinstance(batch, str):
        parts, together = workers * train.micro_batches, per_class or 1
        # Two images, or two classes: one alone has nothing to be compared with.
        least = max(2 * together, 2 * train.micro_batches)
        batch = _fitting_batch(images, math.lcm(parts, together), least)
        if batch > images:
            problems.append(_too_few_images(spec, facts, batch))
    elif batch > images:
        problems.append(
            FieldProblem(
                "train.batch_size",
                f"is larger than the {images} images that the data set leaves for training",
                str(batch),
                f"at most {images}",
            )
        )
    if batch // train.micro_batches < 2 and _has_small_passes(spec.method):
        problems.append(
            FieldProblem(
                "train.micro_batches",
                f"leaves one image of the batch of {batch} for each pass through the network, and a "
                "batch norm needs two",
                str(train.micro_batches),
                f"at most {max(1, batch // 2)}",
            )
        )
    if per_class is not None:
        _check_classes_of_batch(spec, facts, batch, per_class, problems)
    return batch, per_class


def _train(spec: JobSpec, chosen: Chosen) -> ResolvedTrain:
    train = spec.train
    precision, warmup = train.precision, train.warmup_epochs
    if precision == "auto":
        precision = "bf16" if spec.resources.gpus_per_worker else "fp32"
    if warmup == "auto":
        warmup = min(10.0, train.epochs / 10)
    every = train.checkpoint_every_epochs
    if every == "auto":
        every = max(1, round(train.epochs / 10))
    return train.narrow(
        ResolvedTrain,
        batch_size=chosen.batch_size,
        samples_per_class=chosen.samples_per_class,
        precision=precision,
        channels_last=_channels_last(spec),
        clip=_clip(spec),
        optimizer=_optimizer(spec, chosen.batch_size),
        warmup_epochs=warmup,
        checkpoint_every_epochs=every,
    )


def _has_small_passes(method: MethodPart) -> bool:
    """Whether some pass takes one view of an image alone."""
    return method.num_views == 1 or (isinstance(method, MultiCrop) and method.local_crops == 1)


def _too_few_images(spec: JobSpec, facts: DatasetFacts, needed: int) -> FieldProblem:
    """Not even the smallest batch can be filled: name what asks for so many images."""
    images = training_images(spec, facts)
    for field, parts in (
        ("resources.workers", spec.resources.workers),
        ("train.micro_batches", spec.train.micro_batches),
    ):
        if parts > 1:
            return FieldProblem(
                field,
                f"needs a batch of {needed} images, and the data set leaves {images} for training",
                str(parts),
                f"at most {max(1, images // (needed // parts))}",
            )
    had = f"has {facts.num_images} image{'s' if facts.num_images > 1 else ''}"
    left = "" if images == facts.num_images else f", which leave {images} for training"
    return FieldProblem(
        "dataset",
        f"{had}{left}; at least {needed} are needed",
        repr(spec.dataset),
        "a data set with more images",
    )


def _optimizer_name(spec: JobSpec, batch: int) -> Literal["adamw", "sgd", "lars"]:
    name = spec.train.optimizer.name
    if name != "auto":
        return name
    # Metric learning starts from pretrained weights, and its papers fine-tune those with Adam(W).
    tuned = spec.method.supervised and spec.backbone.pretrained is not None
    if tuned or BACKBONES[spec.backbone.name].family == "vit":
        return "adamw"
    return "sgd" if batch <= 1024 else "lars"


def _base_lr(spec: JobSpec, batch: int) -> float:
    name, base = _optimizer_name(spec, batch), spec.train.optimizer.base_lr
    return spec.method.recipe.lr.get(name, BASE_LR[name]) if base == "auto" else base


def _growth(spec: JobSpec, batch: int) -> float:
    """Return the factor from the base rate to that of the batch."""
    linear = spec.train.optimizer.lr_scaling == "linear"
    return batch / 256 if linear else (batch / 256) ** 0.5


def _check_learning_rate(spec: JobSpec, batch: int, problems: list[FieldProblem]) -> None:
    base, growth = _base_lr(spec, batch), _growth(spec, batch)
    if spec.train.optimizer.lr == "auto" and base * growth > LARGEST_RATE:
        problems.append(
            FieldProblem(
                "train.optimizer.base_lr",
                f"comes to a learning rate of {base * growth:g} for a batch of {batch}",
                f"{base:g}",
                f"at most {LARGEST_RATE / growth:g} with this batch",
            )
        )


def _optimizer(spec: JobSpec, batch: int) -> ResolvedOptimizer:
    optimizer = spec.train.optimizer
    name, base = _optimizer_name(spec, batch), _base_lr(spec, batch)
    decay, decay_end = optimizer.weight_decay, optimizer.weight_decay_end
    from_recipe = spec.method.recipe.weight_decay.get(name, WEIGHT_DECAY[name])
    start, end = from_recipe if isinstance(from_recipe, tuple) else (from_recipe, from_recipe)
    if decay_end == "auto":
        decay_end = end if decay == "auto" else decay
    return optimizer.narrow(
        ResolvedOptimizer,
        name=name,
        base_lr=base,
        lr=base * _growth(spec, batch) if optimizer.lr == "auto" else optimizer.lr,
        weight_decay=start if decay == "auto" else decay,
        weight_decay_end=decay_end,
    )


def _clip(spec: JobSpec) -> Clip | None:
    recipe = spec.method.recipe
    if spec.train.clip == "auto":
        return None if recipe.clip is None else Clip(norm=recipe.clip, each=recipe.clip_each)
    return spec.train.clip


def _channels_last(spec: JobSpec) -> bool:
    if spec.train.channels_last == "auto":
        # On a CPU, too: forward and backward of ResNets took 8 to 28% less there.
        return BACKBONES[spec.backbone.name].family == "resnet"
    return spec.train.channels_last


def _check_classes_of_batch(
    spec: JobSpec, facts: DatasetFacts, batch: int, per_class: int, problems: list[FieldProblem]
) -> None:
    """Whether a batch holds what its method compares."""
    if batch % per_class:
        problems.append(
            FieldProblem(
                "train.batch_size",
                f"must be divisible by train.samples_per_class, which is {per_class}",
                str(batch),
                f"such as {max(1, batch // per_class) * per_class}",
            )
        )
    elif spec.method.needs_pairs and batch == per_class:
        problems.append(
            FieldProblem(
                "train.batch_size",
                f"holds a single class, since train.samples_per_class is {per_class}, and "
                f"{spec.method.name} learns from images of different classes",
                str(batch),
                f"at least {2 * per_class}",
            )
        )
    elif spec.method.needs_pairs and per_class == 1 and batch <= training_classes(spec, facts):
        problems.append(
            FieldProblem(
                "train.samples_per_class",
                f"leaves each image of a batch alone in its class, and {spec.method.name} learns "
                "from images of the same class",
                "1",
                "at least 2",
            )
        )


def _augment(augment: Augment, method: MethodPart, image_size: int) -> ResolvedAugment:
    recipe = method.recipe
    large = image_size >= BLUR_FROM
    chosen = {
        "crop_scale": recipe.crop_scale,
        "jitter": recipe.jitter,
        "grayscale": recipe.grayscale,
        "blur": recipe.blur if large else 0.0,
        "solarize": recipe.solarize if large else 0.0,
    }
    return augment.narrow(
        ResolvedAugment,
        **{
            name: value[0] if isinstance(value, tuple) and len(value) == 1 else value
            for name, value in chosen.items()
            if getattr(augment, name) == "auto"
        },
    )


def _dar(spec: JobSpec, images: int) -> ResolvedDAR | None:
    if spec.dar is None:
        return None
    weight = spec.dar.weight
    if weight == "auto":
        weight = DAR_WEIGHTS["distance" if spec.dar.difference == "distance" else spec.dar.norm]
    clusters = UNUSED_CLUSTERS
    if spec.dar.labels == "cluster":
        clusters = _clusters(spec.dar.clusters, spec.method, images)
    return spec.dar.narrow(ResolvedDAR, clusters=clusters, weight=weight)


def _clusters(clusters: Clusters, method: MethodPart, images: int) -> ResolvedClusters:
    source = clusters.source
    if source == "auto":
        source = "prototypes" if method.has_prototypes else "kmeans"
    k = choose_k(images) if clusters.k == "auto" else clusters.k
    return clusters.narrow(ResolvedClusters, source=source, k=k)


def _sec(spec: JobSpec) -> ResolvedSEC | None:
    if spec.sec is None:
        return None
    ramp = not spec.method.supervised if spec.sec.ramp == "auto" else spec.sec.ramp
    return spec.sec.narrow(ResolvedSEC, ramp=ramp)


def _check_dar(spec: JobSpec, batch: int, problems: list[FieldProblem]) -> None:
    """Whether memory holds its pairs."""
    dar = spec.dar
    if dar is None:
        return
    embeddings = batch * min(spec.method.num_views, GLOBAL_VIEWS)
    most = FULL_L2_LIMIT if dar.norm == "l2" and dar.difference != "distance" else FULL_LIMIT
    if dar.estimator == "full" and embeddings > most:
        problems.append(
            FieldProblem(
                "dar.estimator",
                f"takes all pairs of the {embeddings:,} embeddings of a batch",
                "'full'",
                f"'chain' or 'unbiased', or at most {most:,} embeddings",
            )
        )


def _check_triplets(spec: JobSpec, batch: int, problems: list[FieldProblem]) -> None:
    if spec.method.name == "triplet" and batch > TRIPLETS_LIMIT:
        problems.append(
            FieldProblem(
                "train.batch_size",
                f"has {batch**3:.1e} triplets, all of which the method triplet looks at",
                str(batch),
                f"at most {TRIPLETS_LIMIT:,}",
            )
        )


def _check_ignored(spec: JobSpec, batch: int, problems: list[FieldProblem]) -> None:
    """Settings that something else keeps from having any effect: whoever gave them expects one."""
    dar, sec, train = spec.dar, spec.sec, spec.train
    if dar is not None:
        for name, field in Clusters.model_fields.items():
            given = getattr(dar.clusters, name)
            unused = (field.default, getattr(UNUSED_CLUSTERS, name))
            if dar.labels != "cluster" and given not in unused:
                problems.append(
                    _ignored(f"dar.clusters.{name}", given, f"dar.labels: {dar.labels}")
                )
        by_kmeans = _clusters(dar.clusters, spec.method, images=2).source == "kmeans"
        if dar.labels == "cluster" and by_kmeans and dar.clusters.every_epochs >= train.epochs:
            problems.append(
                FieldProblem(
                    "dar.clusters.every_epochs",
                    f"is not before the end of the {train.epochs} epochs: no step would see a cluster",
                    str(dar.clusters.every_epochs),
                    "less than train.epochs",
                )
            )
    if sec is not None and sec.target == "zero" and sec.momentum != 1:
        problems.append(_ignored("sec.momentum", sec.momentum, "sec.target: zero"))
    momentum = train.optimizer.momentum
    if _optimizer_name(spec, batch) == "adamw" and momentum != Optimizer().momentum:
        problems.append(
            _ignored("train.optimizer.momentum", momentum, "train.optimizer.name: adamw")
        )
    if spec.evaluate.dataset is not None and spec.evaluate.holdout != Holdout():
        problems.append(_ignored("evaluate.holdout", "a holdout", "evaluate.dataset"))


def _ignored(field: str, given: object, because: str) -> FieldProblem:
    return FieldProblem(
        field, f"has no effect with {because}", str(given), f"to be left out, or not {because}"
    )


def _check_local_crops(spec: JobSpec, patch: int | None, problems: list[FieldProblem]) -> None:
    method = spec.method
    if not isinstance(method, MultiCrop) or method.local_size == "auto" or not patch:
        return
    if method.local_size % patch:
        problems.append(
            FieldProblem(
                "method.local_size",
                f"must be divisible by the patches of {spec.backbone.name}, which have {patch} pixels",
                str(method.local_size),
                f"such as {max(1, method.local_size // patch) * patch}",
            )
        )


def _check_labels(spec: JobSpec, facts: DatasetFacts, problems: list[FieldProblem]) -> None:
    """What needs classes, or fewer clusters than images."""
    classes, had = training_classes(spec, facts), facts.num_classes or 0
    left = "" if classes == had else f", {classes} of them for training"
    needing = []
    if spec.method.supervised:
        needing.append(("method.name", repr(spec.method.name), "a self-supervised method"))
    if spec.dar is not None and spec.dar.labels == "class":
        needing.append(("dar.labels", "'class'", "'instance' or 'cluster'"))
    if spec.train.samples_per_class not in ("auto", None):
        needing.append(("train.samples_per_class", str(spec.train.samples_per_class), "null"))
    for field, given, instead in needing:
        if classes < 2:
            problems.append(
                FieldProblem(
                    field,
                    f"needs classes to learn from, and the data set has {had or 'none'}{left}",
                    given,
                    f"{instead}, or a data set whose folders are at least two classes",
                )
            )
    if spec.dar is None or spec.dar.labels != "cluster":
        return
    clusters, images = spec.dar.clusters, training_images(spec, facts)
    if clusters.k != "auto" and clusters.k > images:
        problems.append(
            FieldProblem(
                "dar.clusters.k",
                f"is more than the {images} images that the data set leaves for training",
                str(clusters.k),
                f"at most {images}",
            )
        )


def _check_evaluate(spec: JobSpec, facts: DatasetFacts, problems: list[FieldProblem]) -> None:
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
    holdout = evaluate.holdout
    # A fraction that nobody chose may come to nothing on a few images: the run tells of it.
    chosen = evaluate.dataset is None and holdout.fraction != Holdout().fraction
    if chosen and holdout.by == "image" and round(facts.num_images * holdout.fraction) == 0:
        problems.append(
            FieldProblem(
                "evaluate.holdout.fraction",
                f"holds out none of the data set's {facts.num_images} images",
                f"{holdout.fraction:g}",
                f"more than {0.5 / facts.num_images:.3g}, or no fraction to hold nothing out",
            )
        )
    finetune, workers = evaluate.finetune, spec.resources.workers
    if isinstance(finetune, FineTune) and finetune.batch_size < workers:
        problems.append(
            FieldProblem(
                "evaluate.finetune.batch_size",
                f"leaves no image for some of the {workers} workers",
                str(finetune.batch_size),
                f"at least {workers}",
            )
        )


def _evaluate(spec: JobSpec) -> ResolvedEvaluate:
    evaluate, every = spec.evaluate, spec.evaluate.every_epochs
    if every == "auto":
        every = max(1, round(spec.train.epochs / 10))
    return evaluate.narrow(
        ResolvedEvaluate,
        every_epochs=every,
        linear=LinearProbe() if evaluate.linear is True else evaluate.linear,
        finetune=FineTune() if evaluate.finetune is True else evaluate.finetune,
    )
