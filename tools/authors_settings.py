"""The settings that authors publish: tests/fixtures/authors_settings.yaml, read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dasl_core.spec import DatasetFacts, JobSpec, ResolvedJobSpec

FILE = Path(__file__).parents[1] / "tests" / "fixtures" / "authors_settings.yaml"


@dataclass(frozen=True)
class AuthorsSetting:
    """One setting: a value, or one for each setup, and its source."""

    source: str
    value: Any = None
    by_setup: Mapping[str, Any] | None = None

    def of(self, setup: str) -> Any:
        """Return the value in one setup."""
        return self.value if self.by_setup is None else self.by_setup[setup]


@dataclass(frozen=True)
class AuthorsOfMethod:
    """What the authors of a method publish.

    Attributes:
        setups: parts of a spec, by name; `dataset` is a key of `DATASETS`.
        settings: by dotted name.
        differences: what the authors do, and what is done here.
    """

    paper: str
    code: str
    setups: Mapping[str, dict[str, Any]]
    settings: Mapping[str, AuthorsSetting]
    differences: list[dict[str, str]]


_CONTENT = yaml.safe_load(FILE.read_text(encoding="utf-8"))
DATASETS = {
    name: DatasetFacts.model_validate(facts) for name, facts in _CONTENT["datasets"].items()
}
COMMON_DIFFERENCES: list[dict[str, str]] = _CONTENT["common_differences"]
AUTHORS = {
    name: AuthorsOfMethod(
        **method
        | {"settings": {key: AuthorsSetting(**each) for key, each in method["settings"].items()}}
    )
    for name, method in _CONTENT["methods"].items()
}


def setup_of(method: str, setup: str, recipe: str) -> JobSpec:
    """Return the spec of a setup, on all images of its data set, with a recipe."""
    parts = {"method": {"name": method}, "evaluate": {"holdout": None}, "recipe": recipe}
    return JobSpec.model_validate(parts | AUTHORS[method].setups[setup])


def setting_of(spec: ResolvedJobSpec, name: str) -> Any:
    """Return the value of a setting, by its dotted name, as YAML has it."""
    value: Any = spec.model_dump(mode="json")
    for part in name.split("."):
        value = value[part]
    return value
