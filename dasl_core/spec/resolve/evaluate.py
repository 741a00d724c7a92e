"""Check and resolve the settings of evaluations."""

from dasl_core.spec.evaluate import FineTune, Holdout, KMeans, LinearProbe
from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import FieldProblem
from dasl_core.spec.resolve.facts import DatasetFacts
from dasl_core.spec.resolved import ResolvedEvaluate


def check_evaluate(spec: JobSpec, facts: DatasetFacts, problems: list[FieldProblem]) -> None:
    evaluate = spec.evaluate
    if evaluate.dataset is None and evaluate.holdout.by == "class":
        classes = facts.num_classes or 0
        held_out = round(classes * evaluate.holdout.fraction)
        if classes < 2 or not 0 < held_out < classes:
            problems.append(
                FieldProblem(
                    "evaluate.holdout.by",
                    f"cannot hold out {evaluate.holdout.fraction:g} of the classes: the data set has "
                    f"{classes or 'none'}",
                    "'class'",
                    "'image', or a data set with a folder for each of two or more classes",
                )
            )
    holdout = evaluate.holdout
    # The default fraction may round to 0 images: the run then reports it in an event.
    is_explicit = evaluate.dataset is None and holdout.fraction != Holdout().fraction
    if is_explicit and holdout.by == "image" and round(facts.num_images * holdout.fraction) == 0:
        problems.append(
            FieldProblem(
                "evaluate.holdout.fraction",
                f"holds out none of the data set's {facts.num_images} images",
                f"{holdout.fraction:g}",
                f"more than {0.5 / facts.num_images:.3g}",
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


def resolve_evaluate(spec: JobSpec) -> ResolvedEvaluate:
    evaluate, every = spec.evaluate, spec.evaluate.every_epochs
    if every == "auto":
        every = max(1, round(spec.train.epochs / 10))
    return evaluate.narrow(
        ResolvedEvaluate,
        every_epochs=every,
        clustering=KMeans() if evaluate.clustering is True else evaluate.clustering,
        linear=LinearProbe() if evaluate.linear is True else evaluate.linear,
        finetune=FineTune() if evaluate.finetune is True else evaluate.finetune,
    )
