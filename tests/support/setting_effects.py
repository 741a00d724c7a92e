"""Effects of a method's settings: declared in the method's test, checked by `test_method_settings.py`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from dasl_core.methods import Method, Outputs, Step

SAMPLES, PER_EPOCH, EPOCHS = 8, 2, 3
"""Size of a batch, steps of an epoch and epochs of the run in which a method is observed."""

History = list[tuple[Step, Outputs]]
"""The steps of a run so far, with the arguments of `loss`."""


class Other(NamedTuple):
    """An alternative value of a setting, and its effects.

    Attributes:
        effects: names in the result of `observe` that change: exactly these, unless the network
            changes, in which case all may change.
        backbone: set if the setting applies to one family only, which is not that of `tiny_spec`.
    """

    value: Any
    effects: frozenset[str]
    backbone: str | None = None


def other(value: Any, *effects: str, backbone: str | None = None) -> Other:
    return Other(value, frozenset(effects), backbone)


def effects(*names: str, **values: Any) -> dict[str, Other]:
    """Alternative values of settings that have the same effects."""
    return {setting: other(value, *names) for setting, value in values.items()}


@dataclass(frozen=True)
class SettingEffects:
    """What the settings of a method change. A method's test module has it in `SETTING_EFFECTS`.

    Attributes:
        others: another value of each setting.
        loss: function of settings, method and history; returns the loss of the last step.
        base: values to compare with besides `training_world.SMALL`, for settings whose default would
            leave another one without effect.
    """

    others: Mapping[str, Other]
    loss: Callable[[Any, Method, History], Tensor]
    base: Mapping[str, Any] = field(default_factory=dict)


HEAD = effects("network", projection_dim=11, hidden_dim=13)
LOCAL_CROPS = {
    "local_crops": other(3, "views", "outputs", "loss"),
    "local_size": other(12, "views", "outputs"),
    "local_scale": other((0.1, 0.3), "views"),
}
EMBEDDING = effects("network", embedding_dim=11, embedding_norm=True, embedding_init="kaiming")
