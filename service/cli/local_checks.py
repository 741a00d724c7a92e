"""Checks of a spec without a server and its data sets."""

from dataclasses import dataclass, field
from pathlib import Path

from dasl_core.spec import DatasetFacts, FieldProblem, JobSpec, SpecError, resolve
from dasl_core.spec.locations import local_path
from dasl_core.spec.weights import weights_problem
from dasl_core.spec.weights_record import NO_RECORD, WeightsRecord, read_record

# A spec is refused here only if it is refused for all of them. Some settings need many images and classes, others few:
# DAR's estimator "full" a small batch, for example.
_POSSIBLE_FACTS = [
    DatasetFacts(num_images=images, num_classes=classes, median_size=size)
    for images, classes in ((100_000_000, 10_000_000), (10_000, 1000), (200, 2))
    for size in (32, 64, 128, 224)
]


@dataclass
class LocalChecks:
    """Result of the checks.

    Attributes:
        problems: that no data set and no server remedies.
        not_checked: what needs a server, or weights that cannot be read here.
    """

    problems: list[FieldProblem] = field(default_factory=list)
    not_checked: list[str] = field(
        default_factory=lambda: ["the data set", "the cluster's resources"]
    )


def check_locally(spec: JobSpec) -> LocalChecks:
    """Check a spec, and the weights to start from if they are on this machine."""
    checks = LocalChecks()
    pretrained = spec.backbone.pretrained
    record = NO_RECORD if pretrained is None else _check_weights(pretrained, spec, checks)
    problems_by_facts = [_problems(spec, facts, record or NO_RECORD) for facts in _POSSIBLE_FACTS]
    fields = set.intersection(
        *({problem.field for problem in problems} for problems in problems_by_facts)
    )
    if record is None:  # they may record what cannot be chosen without them
        fields -= {"backbone.mean", "backbone.std", "backbone.stem", "backbone.image_size"}
    checks.problems += [problem for problem in problems_by_facts[0] if problem.field in fields]
    return checks


def _check_weights(pretrained: str, spec: JobSpec, checks: LocalChecks) -> WeightsRecord | None:
    """Check weights to start from and return what they record; None: they cannot be read here."""
    name = "backbone.pretrained"
    record: WeightsRecord | None = None
    problem: str | None
    try:
        # `dasl train` accepts paths relative to the working directory, too.
        path = local_path(pretrained) if "://" in pretrained else Path(pretrained)
        if not path.exists():
            checks.not_checked.append(f"{name}, which is not on this machine")
            return None
        record, problem = read_record(path), weights_problem(path, spec.backbone)
    except (OSError, ValueError) as error:
        if PermissionError in (type(error), type(error.__cause__)):
            checks.not_checked.append(f"{name}, which you may not read")
            return None
        problem = str(error).removeprefix(f"{name}: ")
    if problem is not None:
        checks.problems.append(FieldProblem(name, problem, pretrained))
    return record


def _problems(spec: JobSpec, facts: DatasetFacts, record: WeightsRecord) -> list[FieldProblem]:
    try:
        resolve(spec, facts, record)
    except SpecError as error:
        return error.problems
    return []
