"""Check the training schedule of the user, before the recipe fills it in."""

from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import Problems
from dasl_core.spec.resolve.epochs import resolved_epochs
from dasl_core.spec.resolve.evaluate import evaluation_interval
from dasl_core.spec.train import Optimizer, StepDecay


def check_schedule(spec: JobSpec, has_weights: bool, problems: Problems) -> None:
    """Refuse frozen epochs, rate falls and early stopping without effect."""
    _check_head_only(spec, has_weights, problems)
    _check_step_decay(spec.train.optimizer, resolved_epochs(spec), problems)
    _check_stop(spec, problems)


def _check_head_only(spec: JobSpec, has_weights: bool, problems: Problems) -> None:
    head_only, epochs = spec.train.head_only_epochs, resolved_epochs(spec)
    if head_only == "auto" or head_only == 0:
        return
    if head_only >= epochs:
        problems.add(
            "train.head_only_epochs",
            f"leaves no epoch in which the backbone learns: train.epochs is {epochs}",
            str(head_only),
            f"at most {epochs - 1}",
        )
    elif not has_weights:
        problems.add(
            "train.head_only_epochs",
            "would keep random weights, since backbone.pretrained is null",
            str(head_only),
            "0, or backbone.pretrained with weights to start from",
        )


def _check_step_decay(optimizer: Optimizer, epochs: int, problems: Problems) -> None:
    decay = optimizer.step_decay
    if not isinstance(decay, StepDecay):
        return
    falls = decay.epochs if isinstance(decay.epochs, tuple) else (decay.epochs,)
    ordered = tuple(sorted(set(falls)))
    if falls != ordered:
        problems.add(
            "train.optimizer.step_decay.epochs",
            "must increase from each entry to the next",
            str(list(falls)),
            str(list(ordered)),
        )
    if ordered[-1] >= epochs:
        problems.add(
            "train.optimizer.step_decay.epochs",
            f"is not before the end of the training: train.epochs is {epochs}",
            f"{ordered[-1]:g}",
            f"below {epochs}",
        )
    if optimizer.lr_end not in ("auto", 0):
        problems.add(
            "train.optimizer.lr_end",
            "has no effect with train.optimizer.step_decay",
            str(optimizer.lr_end),
            "'auto', or train.optimizer.step_decay: null",
        )


def _check_stop(spec: JobSpec, problems: Problems) -> None:
    """Check that early stopping can end the training before its last epoch."""
    stop, epochs, every = spec.train.stop, resolved_epochs(spec), evaluation_interval(spec)
    if stop is None:
        return
    # Evaluations of a frozen backbone do not count.
    frozen = 0 if spec.train.head_only_epochs == "auto" else spec.train.head_only_epochs
    evaluations, needed = max(0, (epochs - 1) // every - frozen // every), stop.patience + 1
    if evaluations >= needed:
        return
    message = (
        f"leaves train.stop without effect: it needs {needed} evaluations before the last epoch, and the "
        f"run has {evaluations}"
    )
    field, given = "train.stop.patience", stop.patience
    expected = f"at most {evaluations - 1}" if evaluations > 1 else "more train.epochs"
    if evaluations < 2 and every > 1:
        field, given = "evaluate.every_epochs", every
        expected = f"at most {max(1, (epochs - 1) // needed)}"
    problems.add(field, message, str(given), f"{expected}, or train.stop: null")
