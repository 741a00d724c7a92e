"""Choose the recipe and replace "auto" by its settings."""

from collections import ChainMap
from dataclasses import replace
from typing import Any, TypeVar

from dasl_core.spec.backbones import CLASS_TOKENS
from dasl_core.spec.base import SpecModel
from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.recipes import (
    CONTINUE,
    NOTHING,
    SMALL,
    JobFacts,
    RecipeName,
    Settings,
    value_for,
)
from dasl_core.spec.resolve.backbone import SMALL_UP_TO
from dasl_core.spec.resolve.epochs import resolved_epochs

OPTIMIZERS = "train.optimizer."
OPTIMIZER = f"{OPTIMIZERS}name"

Part = TypeVar("Part", bound=SpecModel)


def choose_recipe(spec: JobSpec, has_weights: bool, problems: Problems) -> RecipeName:
    """Return the spec's recipe, or choose one by the backbone's initial weights."""
    name = spec.recipe
    if name == "auto":
        starts = spec.backbone.pretrained is not None and not spec.method.supervised
        return "continue" if starts else "small"
    authors, family = spec.method.authors, spec.backbone.info.family
    from_weights = name == "continue" or (
        name == "authors" and authors is not None and authors.from_weights
    )
    if from_weights and not has_weights:
        problems.add(
            "recipe",
            "is for a start from weights, and backbone.pretrained is null",
            repr(name),
            "'small', or backbone.pretrained with weights to start from",
        )
    if name == "authors" and (authors is None or family not in authors.families):
        such = "" if authors is None else f" for backbones such as {spec.backbone.name}"
        problems.add(
            "recipe",
            f"is not known: no settings of the authors of {spec.method.name}{such} were found",
            "'authors'",
            "'small'",
        )
    return name


def name_recipe(problem: FieldProblem, spec: JobSpec, recipe: RecipeName) -> FieldProblem:
    """Name the recipe in the problem of a setting that comes from it."""
    if problem.field not in _recipe_settings(spec, recipe):
        return problem
    value: Any = spec
    for name in problem.field.split("."):
        value = getattr(value, name)
    if value != "auto":
        return problem
    return replace(
        problem,
        given=f"{problem.given} by recipe: {recipe}",
        expected=f"{problem.expected}, or another recipe",
    )


def fill_in(spec: JobSpec, recipe: RecipeName, pixels: int, features: int, images: int) -> JobSpec:
    """Replace "auto" by the settings of the recipe and the constants of `small`.

    Args:
        pixels: of the images' side that the network's input has.
        features: width of the backbone's features.
        images: number of training images.
    """
    job = JobFacts(
        family=spec.backbone.info.family,
        features=features,
        epochs=resolved_epochs(spec),
        batch=256 if spec.train.batch_size == "auto" else spec.train.batch_size,
        images=images,
        optimizer=spec.train.optimizer.name,
        has_small_images=pixels <= SMALL_UP_TO,
    )
    own = _recipe_settings(spec, recipe)
    its_optimizer = value_for(own.get(OPTIMIZER, "auto"), job)
    if job.optimizer == "auto":
        job = job._replace(optimizer=its_optimizer)
    elif recipe == "authors" and its_optimizer not in ("auto", job.optimizer):
        # Rates and decays of one optimizer do not apply to another.
        own = {name: value for name, value in own.items() if not name.startswith(OPTIMIZERS)}
    tables = (_pooling(spec), own, spec.method.recipe.settings, SMALL)
    for name, value in ChainMap(*(dict(table) for table in tables)).items():
        spec = _with(spec, name.split("."), value_for(value, job))
    return spec


def _recipe_settings(spec: JobSpec, recipe: RecipeName) -> Settings:
    """Return the settings of a recipe that differ from `small`."""
    if recipe == "authors":
        return spec.method.settings_of_authors
    return CONTINUE if recipe == "continue" else NOTHING


def _pooling(spec: JobSpec) -> Settings:
    """Pool the class token if the method trains it and timm may average patches."""
    backbone = spec.backbone
    if backbone.info.family not in CLASS_TOKENS or not backbone.info.class_token:
        return NOTHING
    trained = "dinov3" in backbone.name or spec.method.name == "ibot"
    return {"backbone.pooling": "token"} if trained else NOTHING


def _with(part: Part, path: list[str], value: Any) -> Part:
    """Return `part` with the field at `path` set to `value` if it is "auto"."""
    name, *inner = path
    given = getattr(part, name, None)
    if inner and isinstance(given, SpecModel):
        return part.model_copy(update={name: _with(given, inner, value)})
    # Validated, because the value may be a whole part.
    return part.narrow(type(part), **{name: value}) if given == "auto" else part
