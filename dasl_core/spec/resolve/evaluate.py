"""Check and resolve the settings of evaluations."""

import math
from collections.abc import Collection, Mapping

from dasl_core.headlines import INSTANCE_RECALL, RECALL, VERIFICATION, larger_is_better
from dasl_core.spec.errors import closest
from dasl_core.spec.evaluate import Evaluate, FineTune, Holdout, KMeans, LinearProbe
from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.resolve.epochs import automatic_interval
from dasl_core.spec.resolve.facts import DatasetFacts
from dasl_core.spec.resolve.pixels import RGB, conversion, fits_window, percentile
from dasl_core.spec.resolved import ResolvedBackbone, ResolvedEvaluate

# Resize 256 and CenterCrop 224, for images of at least this size.
IMAGENET_CROP, IMAGENET_LIKE = 0.875, 128


def check_evaluate(spec: JobSpec, facts: DatasetFacts, problems: Problems) -> None:
    if spec.evaluate.dataset is None:
        if spec.evaluate.holdout is None:
            _check_nothing_held_out(spec.evaluate, problems)
        else:
            check_holdout(spec.evaluate.holdout, facts, problems)
            if spec.evaluate.gallery is not None and facts.num_classes is None:
                problems.add(
                    "evaluate.gallery",
                    "needs classes, and the data set has none",
                    spec.evaluate.gallery,
                    "null, or a data set with a folder for each of two or more classes",
                )
    finetune, workers = spec.evaluate.finetune, spec.resources.workers
    if isinstance(finetune, FineTune) and finetune.batch_size < workers:
        problems.add(
            "evaluate.finetune.batch_size",
            f"leaves no image for some of the {workers} workers",
            str(finetune.batch_size),
            f"at least {workers}",
        )


def check_named_metrics(spec: JobSpec, facts: DatasetFacts, problems: Problems) -> None:
    """Check that evaluations measure the metrics of best checkpoints and early stopping."""
    named = {"checkpoints.best_by": spec.checkpoints.best_by}
    if spec.train.stop is not None:
        named["train.stop.metric"] = spec.train.stop.metric
    measured = measured_metrics(spec, facts)
    for field, metric in named.items():
        if metric is not None and metric not in measured:
            expected = f"one of {', '.join(measured)}" if measured else "null: nothing is held out"
            message = (
                "is not measured by the evaluations of this job"
                if larger_is_better(metric) is not None
                else "cannot be used here: it must be measured at every evaluation and have a direction"
            ) + closest(metric, measured)
            problems.add(field, message, repr(metric), expected)


def measured_metrics(spec: JobSpec, facts: DatasetFacts) -> list[str]:
    """Return the metrics with a direction that are measured by each evaluation during training.

    Another data set to evaluate on is assumed to have the same classes.
    """
    evaluate, classes = spec.evaluate, facts.num_classes is not None
    whole_classes, images = False, facts.num_images
    if evaluate.dataset is None:
        if evaluate.holdout is None:
            return []
        whole_classes = evaluate.holdout.by == "class"
        if not whole_classes:
            images = round(facts.num_images * evaluate.holdout.fraction)
    names = []
    if classes and evaluate.knn is not None and not whole_classes:
        names.append("knn_top1")
    labeled = classes or evaluate.dataset is not None
    if labeled and images > 1:
        names += [f"{RECALL}{k}" for k in evaluate.retrieval]
    if labeled and evaluate.clustering:
        names += ["nmi", "pairwise_f1", "pairwise_precision", "pairwise_recall"]
    if labeled and evaluate.verification:
        names.append(VERIFICATION)
    if images > 1:
        names += [INSTANCE_RECALL, "effective_rank", "dimension_std", "uniformity"]
    return names if images else []


def check_holdout(
    holdout: Holdout, facts: DatasetFacts, problems: Problems, section: str = "evaluate"
) -> None:
    """Check that the fraction leaves images or classes on both sides; problems name the fields of `section`."""
    if holdout.by == "class":
        classes = facts.num_classes or 0
        if classes < 2 or not 0 < round(classes * holdout.fraction) < classes:
            problems.add(
                f"{section}.holdout.by",
                f"cannot hold out {holdout.fraction:g} of the classes: the data set has "
                f"{classes or 'none'}",
                "'class'",
                "'image', or a data set with a folder for each of two or more classes",
            )
    elif holdout.group is not None:
        column = holdout.group.column
        if column is not None and column != facts.group_column:
            problems.add(
                f"{section}.holdout.group.column",
                "is not the column that the data set was registered with",
                repr(column),
                repr(facts.group_column)
                if facts.group_column
                else f"a data set registered with --group-column {column}",
            )
    # The default fraction may round to 0 images, which the run reports in an event.
    elif holdout.fraction != Holdout().fraction and round(facts.num_images * holdout.fraction) == 0:
        problems.add(
            f"{section}.holdout.fraction",
            f"holds out none of the data set's {facts.num_images} images",
            f"{holdout.fraction:g}",
            _holdout_advice(facts.num_images, section),
        )


def _holdout_advice(images: int, section: str) -> str:
    """Advise on a fraction that rounds to no held-out images."""
    if images == 1:
        return f"{section}.holdout: null"
    digits = len(str(images)) + 1
    one = f"{math.ceil(10**digits / images) / 10**digits:.{digits}f}".rstrip("0")
    return f"{one} for one image, or {section}.holdout: null"


def _check_nothing_held_out(evaluate: Evaluate, problems: Problems) -> None:
    """Refuse evaluation settings that need held-out images."""
    usual = Evaluate()
    for name in (
        *("knn", "linear", "finetune", "clustering", "retrieval", "gallery", "verification"),
    ):
        given = getattr(evaluate, name)
        if given and given != getattr(usual, name):
            problems.add(
                f"evaluate.{name}",
                "needs held-out images, and evaluate.holdout is null; remove it, or name a data set "
                "in evaluate.dataset",
            )


def unmatched_classes(evaluated: Mapping[str, int], trained: Collection[str]) -> str | None:
    """Describe evaluation images, by class, of classes without training images; None if there are none, or no labels."""
    missing = sorted(name for name in evaluated if name not in trained)
    if not missing or not trained:
        return None
    some = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
    count = f"{sum(evaluated[name] for name in missing)} of {sum(evaluated.values())}"
    return f"{count} evaluation images are of classes without training images: {some}"


def evaluation_interval(spec: JobSpec) -> int:
    """Return the epochs between evaluations."""
    every = spec.evaluate.every_epochs
    return automatic_interval(spec) if every == "auto" else every


def resolve_evaluate(spec: JobSpec, image_size: int) -> ResolvedEvaluate:
    evaluate = spec.evaluate
    return evaluate.without_auto(
        ResolvedEvaluate,
        {
            "on": "embedding" if spec.method.supervised else "backbone",
            "crop_pct": IMAGENET_CROP if image_size >= IMAGENET_LIKE else 1.0,
            "every_epochs": automatic_interval(spec),
        },
        clustering=KMeans() if evaluate.clustering is True else evaluate.clustering,
        linear=LinearProbe() if evaluate.linear is True else evaluate.linear,
        finetune=FineTune() if evaluate.finetune is True else evaluate.finetune,
    )


def evaluation_problem(
    name: str, evaluated: DatasetFacts, trained: DatasetFacts, backbone: ResolvedBackbone
) -> FieldProblem | None:
    """Describe why images do not fit the channels or the window of the network; None if they do.

    Args:
        name: `evaluate.dataset` of the spec.
        evaluated: facts about that data set.
        trained: facts about the training data set.
        backbone: backbone resolved for the training data set.
    """
    channels, bands = backbone.in_channels, evaluated.bands
    # Decoders turn gray into color and color into luminance. Opacity and CMYK count as color.
    is_converted = channels in (1, RGB) and bands in (1, RGB)
    if bands not in (channels, trained.bands) and not is_converted:
        return FieldProblem(
            "evaluate.dataset",
            f"has images of {bands} bands, and backbone.in_channels is {channels}",
            name,
            f"images of {channels} bands",
        )
    if evaluated.dtype == trained.dtype or evaluated.quantiles is None:
        return None
    low, high = backbone.window
    least, most = (percentile(evaluated.quantiles, each) for each in (0.1, 99.9))
    factor = conversion(evaluated.dtype, trained.dtype)
    if fits_window((least * factor, most * factor), backbone.window):
        return None
    read = f", {least * factor:g} to {most * factor:g} as {trained.dtype}" if factor != 1 else ""
    return FieldProblem(
        "evaluate.dataset",
        f"has {evaluated.dtype} values from {least:g} to {most:g}{read}, and backbone.window, of the {trained.dtype} "
        f"images to train on, goes from {low:g} to {high:g}",
        name,
        "images in the units of those to train on",
    )
