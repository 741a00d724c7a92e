"""How the driver of an attempt judges what made its ranks fail."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError

from dasl_core.train.engine import DivergedError
from workers.run import HOPELESS, of_surroundings


@pytest.mark.parametrize(
    ("error", "hopeless", "surroundings"),
    [
        (ValueError("4 of 30 images can no longer be read"), True, False),
        (DivergedError("the loss is NaN"), True, False),
        (OverflowError("cannot convert float infinity to integer"), True, False),
        (RuntimeError("value cannot be converted to type float without overflow"), False, False),
        (RuntimeError("Gloo connection closed by peer"), False, True),
        (OSError(28, "No space left on device"), False, True),
        (TimeoutError("reports did not arrive"), False, True),
        (ActorDiedError(), False, True),
    ],
)
def test_what_may_be_met_again(error: Exception, hopeless: bool, surroundings: bool) -> None:
    assert isinstance(error, HOPELESS) == hopeless
    assert of_surroundings(error) == surroundings
