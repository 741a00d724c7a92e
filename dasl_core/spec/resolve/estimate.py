"""Cost estimate of a resolved job."""

import math

from dasl_core.spec.backbones import SMALL_STEM_PATCHES
from dasl_core.spec.base import SpecModel
from dasl_core.spec.methods.config import EMATeacherConfig, MultiCropConfig
from dasl_core.spec.resolve.facts import DatasetFacts, training_images
from dasl_core.spec.resolve.pixels import raw_canvas_bytes
from dasl_core.spec.resolved import ResolvedBackbone, ResolvedJobSpec

_FLOAT = 4  # bytes
_BYTES_PER_VALUE = {"uint8": 1, "uint16": 2, "int16": 2, "float32": 4}
# JPEG of quality 95 takes a seventh of the raw size (`train.image_cache`).
_JPEG_SHARE = 1 / 7
# A step is a forward pass and a backward pass of twice its cost.
_PASSES = 3
# Floating-point operations per second and core when training a ResNet in float32, measured on two machines with AVX2.
SLOW_CORE, FAST_CORE = 20e9, 80e9
# Seconds for startup and first decoding before the first step, and for plots and files after the last.
LEAST_AROUND, MOST_AROUND = 15.0, 60.0
# ResNets with the small stem compute feature maps of four times the width and height.
_SMALL_STEM = 16


class Estimate(SpecModel):
    """Estimated cost of a resolved job. Heads, augmentation and evaluations are not counted."""

    train_images: int
    held_out_images: int
    """Images to evaluate on: of the data set, or those of `evaluate.dataset`."""
    epochs: int
    steps_per_epoch: int
    total_steps: int
    backbone_parameters: int
    state_bytes_per_worker: int
    """Weights, gradients and optimizer state of the backbone, and its EMA teacher; no activations. With
    `train.sharding: fsdp`, a rank's part."""
    activation_bytes_per_worker: int | None
    """Rough: what the backward pass of a step needs of the forward pass, from the values that autograd keeps
    for an image. null: not known for the backbone."""
    image_cache_bytes: int
    """At most, on each machine: decoded images in the image cache."""
    checkpoint_bytes: int
    """One checkpoint at the end of an epoch."""
    checkpoints_kept: int
    """At the ends of epochs, once the job has ended."""
    checkpoints_bytes: int
    """All of them, with the ONNX file of the last one."""
    flops_per_image: int | None
    """Floating-point operations for an image in a step, with all its views. null: not known for the backbone."""


def estimate(
    resolved: ResolvedJobSpec, facts: DatasetFacts, evaluated: DatasetFacts | None = None
) -> Estimate:
    """Estimate steps, parameters, memory, disk and computation of a resolved spec.

    Args:
        evaluated: facts about the data set of `evaluate.dataset`.

    Raises:
        ValueError: the backbone is a custom network of unknown size.
    """
    if resolved.backbone.is_own:
        raise ValueError("backbone.name: the size of a network of one's own is not known")
    images, train = training_images(resolved, facts), resolved.train
    steps = images // train.batch_size
    parameters = resolved.backbone.info.parameters
    # One moment (SGD, LARS) or two (AdamW, Adam), in addition to float32 weights and gradients.
    moments = 2 if train.optimizer.name in ("adamw", "adam") else 1
    teacher = isinstance(resolved.method, EMATeacherConfig)
    raw = raw_canvas_bytes(resolved.backbone.image_size, resolved.backbone.in_channels, facts)
    share = _JPEG_SHARE if train.image_cache == "jpeg" else _BYTES_PER_VALUE[facts.dtype]
    # In memory weights, gradients, moments and the teacher; in a checkpoint the exported backbone, and the
    # training state: student, its moments, and the teacher.
    state = _FLOAT * parameters * (2 + moments + teacher)
    shards = resolved.resources.workers if train.sharding == "fsdp" else 1
    kept, policy = math.ceil(train.epochs / train.checkpoint_every_epochs), resolved.checkpoints
    if policy.keep_last is not None:
        kept = min(kept, policy.keep_last + policy.keep_best)
    return Estimate(
        train_images=images,
        held_out_images=evaluated.num_images if evaluated else facts.num_images - images,
        epochs=train.epochs,
        steps_per_epoch=steps,
        total_steps=steps * train.epochs,
        backbone_parameters=parameters,
        state_bytes_per_worker=math.ceil(state / shards),
        activation_bytes_per_worker=_activation_bytes(resolved),
        image_cache_bytes=round(raw * share),
        checkpoint_bytes=state,
        checkpoints_kept=kept,
        checkpoints_bytes=kept * state + _FLOAT * parameters,
        flops_per_image=_flops_per_image(resolved),
    )


def seconds_on_cores(
    estimate: Estimate, resolved: ResolvedJobSpec, cores: int
) -> tuple[float, float] | None:
    """Return lower and upper bounds on a job's seconds on a number of cores; None if unknown for the backbone."""
    if estimate.flops_per_image is None:
        return None
    images = estimate.total_steps * resolved.train.batch_size
    flops = images * estimate.flops_per_image / cores
    return flops / FAST_CORE + LEAST_AROUND, flops / SLOW_CORE + MOST_AROUND


def _flops_per_image(resolved: ResolvedJobSpec) -> int | None:
    multiply_adds = resolved.backbone.info.multiply_adds
    if multiply_adds is None:
        return None
    views = _views(resolved)
    passes = _PASSES + (1 if resolved.train.checkpoint_activations else 0)
    forward = passes * views
    if isinstance(resolved.method, EMATeacherConfig):
        forward += min(2, resolved.method.num_views) * _area(resolved.backbone)
    return round(2 * multiply_adds * forward)


def _activation_bytes(resolved: ResolvedJobSpec) -> int | None:
    activations, train = resolved.backbone.info.activations, resolved.train
    if activations is None or train.checkpoint_activations:
        return None
    images = math.ceil(train.batch_size / (resolved.resources.workers * train.micro_batches))
    size = _FLOAT if train.precision in ("fp32", "fp64") else _FLOAT // 2
    return round(size * activations * images * _views(resolved))


def _views(resolved: ResolvedJobSpec) -> float:
    """Return the views' cost relative to an image of the published size."""
    method, backbone = resolved.method, resolved.backbone
    local = method.local_crops if isinstance(method, MultiCropConfig) else 0
    views = (method.num_views - local) * _area(backbone)
    if isinstance(method, MultiCropConfig) and method.local_size != "auto":
        views += local * _area(backbone) * (method.local_size / backbone.image_size) ** 2
    return views


def _area(backbone: ResolvedBackbone) -> float:
    """Return the cost of an image of `image_size` relative to the published size."""
    info = backbone.info
    area = (backbone.image_size / info.image_size) ** 2
    if backbone.stem != "small":
        return area
    if info.patch_size is None:
        return area * _SMALL_STEM
    # Its patches scale with the images, so their number is constant.
    return (SMALL_STEM_PATCHES * info.patch_size / info.image_size) ** 2
