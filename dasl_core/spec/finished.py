"""Settings of runs on a finished model, checked against the spec that it was trained with."""

from dataclasses import replace

from dasl_core.spec.evaluate import Evaluate, FineTune, KMeans, LinearProbe
from dasl_core.spec.problems import FieldProblem, Problems, SpecError
from dasl_core.spec.resolve.evaluate import check_holdout, evaluation_problem
from dasl_core.spec.resolve.facts import DatasetFacts
from dasl_core.spec.resolved import ResolvedBackbone, ResolvedEvaluate, ResolvedJobSpec
from dasl_core.vocabulary import FeatureKind

# Settings of a training's evaluations that say nothing of one that follows it.
_OF_TRAINING = ("dataset", "on", "every_epochs")
_NEED_CLASSES = ("linear", "finetune", "clustering", "gallery", "verification")
_NEED_TRAINING_IMAGES = ("linear", "finetune")


def resolve_evaluation(
    settings: Evaluate, spec: ResolvedJobSpec, facts: DatasetFacts
) -> ResolvedEvaluate:
    """Replace each "auto" of the evaluation of a finished backbone on the images of a data set.

    Args:
        settings: the images that they hold out are evaluated on; the others are those in the bank of k-NN, and those
            that the probes learn from. Without `holdout` all images are evaluated on.
        spec: of the training of the backbone.
        facts: of the data set.

    Raises:
        SpecError: a setting has no effect, or the data set does not allow it.
    """
    usual, problems = Evaluate(), Problems()
    for name in _OF_TRAINING:
        if getattr(settings, name) != getattr(usual, name):
            message = "has no effect on a finished backbone; remove it"
            problems.add(f"settings.{name}", message)
    for name in _NEED_CLASSES:
        if getattr(settings, name) and facts.num_classes is None:
            message = "needs classes, and the data set has none"
            expected = "a data set with a folder for each of two or more classes"
            problems.add(f"settings.{name}", message, expected=expected)
    if settings.holdout is None:
        for name in _NEED_TRAINING_IMAGES:
            if getattr(settings, name):
                message = "needs images to learn from, and settings.holdout is null"
                problems.add(f"settings.{name}", message)
    else:
        check_holdout(settings.holdout, facts, problems, section="settings")
        rounds_to = round(settings.holdout.fraction * facts.num_images)
        if settings.holdout.by == "image" and not rounds_to and not problems:
            message = f"rounds to none of the {facts.num_images} images"
            problems.add(
                "settings.holdout.fraction",
                message,
                f"{settings.holdout.fraction:g}",
                "a larger one, or settings.holdout: null, which evaluates on all images",
            )
    if problems:
        raise SpecError(problems)
    return settings.without_auto(
        ResolvedEvaluate,
        {"crop_pct": spec.evaluate.crop_pct},
        on="backbone",
        every_epochs=1,
        clustering=KMeans() if settings.clustering is True else settings.clustering,
        linear=LinearProbe() if settings.linear is True else settings.linear,
        finetune=FineTune() if settings.finetune is True else settings.finetune,
    )


def images_problem(
    name: str, facts: DatasetFacts, trained: DatasetFacts, backbone: ResolvedBackbone
) -> FieldProblem | None:
    """Describe why the images of `dataset` do not fit a trained backbone; None if they do."""
    problem = evaluation_problem(name, facts, trained, backbone)
    return problem and replace(problem, field="dataset")


def features_problem(kind: FeatureKind, backbone: ResolvedBackbone) -> FieldProblem | None:
    """Describe why a backbone lacks a kind of features; None if it has them."""
    info = backbone.info
    if kind == "pooled" or (kind == "cls" and info.class_token):
        return None
    if kind == "patch" and info.patch_size is not None:
        return None
    missing = "class token" if kind == "cls" else "tokens of patches"
    expected = "pooled"
    if kind == "cls" and info.patch_size is not None:
        expected = "pooled or patch"
    return FieldProblem("features", f"{backbone.name} has no {missing}", kind, expected)
