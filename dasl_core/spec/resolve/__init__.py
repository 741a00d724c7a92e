"""Resolution of "auto" values: a pure function of a spec and the facts of its data set.

The result is stored with the job, so that a run can be repeated.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from dasl_core.spec.errors import part_problems
from dasl_core.spec.job import JobSpec
from dasl_core.spec.methods import ResolveContext
from dasl_core.spec.problems import Problems, SpecError
from dasl_core.spec.regularizers import RegularizerContext
from dasl_core.spec.resolve.augment import check_augment, resolve_augment
from dasl_core.spec.resolve.backbone import (
    check_frozen_batch_norm,
    choose_backbone,
    choose_features,
)
from dasl_core.spec.resolve.batch import choose_batch
from dasl_core.spec.resolve.checks import (
    check_backbone,
    check_ignored,
    check_labels,
    check_sharding,
)
from dasl_core.spec.resolve.epochs import resolved_epochs, with_epochs
from dasl_core.spec.resolve.estimate import Estimate, estimate, seconds_on_cores
from dasl_core.spec.resolve.evaluate import (
    check_evaluate,
    check_named_metrics,
    evaluation_problem,
    resolve_evaluate,
)
from dasl_core.spec.resolve.facts import DatasetFacts, training_images
from dasl_core.spec.resolve.pixels import (
    check_channels,
    check_extra_bands,
    check_pixel_type,
    choose_channels,
    choose_image_cache,
    choose_normalization,
    choose_window,
)
from dasl_core.spec.resolve.recipe import choose_recipe, fill_in, name_recipe
from dasl_core.spec.resolve.schedule import check_schedule
from dasl_core.spec.resolve.train import check_learning_rate, precision_with, resolve_train
from dasl_core.spec.resolved import ResolvedBackbone, ResolvedJobSpec
from dasl_core.spec.weights_record import NO_RECORD, WeightsRecord

__all__ = [
    "DatasetFacts",
    "Estimate",
    "estimate",
    "evaluation_problem",
    "precision_with",
    "resolve",
    "seconds_on_cores",
]

GLOBAL_VIEWS = 2  # regularizers see their embeddings; local crops only train the student


@contextmanager
def _named_fields() -> Iterator[None]:
    """Name the field of each resolved value that is outside its range."""
    try:
        yield
    except ValidationError as error:
        raise SpecError(part_problems(error, ResolvedJobSpec)) from error


@_named_fields()
def resolve(
    spec: JobSpec,
    facts: DatasetFacts,
    record: WeightsRecord = NO_RECORD,
    *,
    own_features: int | None = None,
    from_checkpoint: bool = False,
    has_gpus: bool = False,
) -> ResolvedJobSpec:
    """Return the spec with every "auto" replaced by a number or a name, except a rank's CPUs.

    Without `has_gpus`, `resources.gpus_per_worker: auto` stays as well.

    Choices that others depend on come first, then all checks, so that every problem is reported at once; then the
    parts are assembled.

    Args:
        facts: facts about the data set.
        record: record of the initial weights (`read_record`), where the files can be read.
        own_features: feature width of a custom network, with `spec.backbone.name` "own". `pretrain` takes such a
            network; jobs and commands do not.
        from_checkpoint: whether the job continues from another job's checkpoint, which has weights.
        has_gpus: whether ranks have GPUs if `resources.gpus_per_worker` is "auto".

    Raises:
        SpecError: the spec cannot run on this data set.
    """
    problems = Problems()
    if has_gpus and spec.resources.gpus_per_worker == "auto":
        resources = spec.resources.model_copy(update={"gpus_per_worker": 1})
        spec = spec.model_copy(update={"resources": resources})
    spec = with_epochs(spec, facts)
    has_weights = from_checkpoint or spec.backbone.may_have_weights
    network = choose_backbone(spec.backbone, facts, record, problems)
    check_frozen_batch_norm(spec.backbone, has_weights, problems)
    image_size = network.image_size
    pixels = image_size
    if spec.backbone.image_size == "auto":
        pixels = min(image_size, facts.median_size)  # small images may be seen enlarged
    features = choose_features(spec.backbone, own_features, problems)
    check_schedule(spec, has_weights, problems)
    recipe, given = choose_recipe(spec, has_weights, problems), spec
    spec = fill_in(spec, recipe, pixels, features, training_images(spec, facts))
    channels = choose_channels(spec.backbone, facts, record)
    check_channels(spec.backbone, channels, facts, problems)
    check_pixel_type(spec.backbone, facts, problems)
    window = choose_window(spec.backbone, facts, problems)
    normalization = choose_normalization(
        spec.backbone, channels, window, facts, record.normalization, problems
    )
    check_extra_bands(spec.backbone, channels, problems)
    image_cache = choose_image_cache(spec.train, image_size, channels, facts, problems)
    batch, per_class = choose_batch(spec, facts, problems)
    epochs = resolved_epochs(spec)
    context = ResolveContext(
        backbone=spec.backbone.name,
        features=features,
        image_size=image_size,
        patch_size=network.patch_size,
        train_images=training_images(spec, facts),
        batch_size=batch,
        epochs=epochs,
        crop_multiple=network.crop_multiple,
        smallest_size=network.smallest_size,
        starts_from_weights=spec.backbone.pretrained is not None,
        class_token=spec.backbone.info.class_token,
        token_patch_size=spec.backbone.info.token_patch_size,
        learned_positions=spec.backbone.info.learned_positions,
    )
    augment = resolve_augment(spec.augment, spec.method, pixels)
    check_augment(given.augment, augment, channels, problems)
    check_learning_rate(spec, batch, problems)
    check_evaluate(spec, facts, problems)
    check_named_metrics(spec, facts, problems)
    check_labels(spec, facts, problems)
    regularized = RegularizerContext(
        spec.method,
        batch * min(spec.method.num_views, GLOBAL_VIEWS),
        context.train_images,
        epochs,
        spec.train.micro_batches,
    )
    for regularizer in spec.given_regularizers().values():
        problems += regularizer.check(regularized)
    check_ignored(spec, batch, problems)
    check_sharding(spec, batch, problems)
    check_backbone(spec, has_weights, problems)
    problems += spec.method.check(context)
    if problems:
        raise SpecError(name_recipe(problem, given, recipe) for problem in problems)
    return spec.narrow(
        ResolvedJobSpec,
        recipe=recipe,
        backbone=spec.backbone.narrow(
            ResolvedBackbone,
            image_size=image_size,
            stem=network.stem,
            in_channels=channels,
            pixel_type=facts.dtype,
            window=window,
            mean=normalization.mean,
            std=normalization.std,
        ),
        train=resolve_train(spec, batch, per_class, image_cache),
        evaluate=resolve_evaluate(spec, image_size),
        augment=augment,
        method=spec.method.resolve(context),
        dar=spec.dar and spec.dar.resolve(regularized),
        sec=spec.sec and spec.sec.resolve(regularized),
        regularizers=spec.regularizers.model_copy(
            update={
                name: settings.resolve(regularized)
                for name, settings in spec.given_regularizers().items()
                if not settings.top_level
            }
        ),
    )
