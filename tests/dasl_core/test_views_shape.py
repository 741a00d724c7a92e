"""Losses of two views: errors for wrong shapes name the expected one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dasl_core.methods import nt_xent
from dasl_core.methods.byol import byol_loss
from dasl_core.methods.hcl import hard_negative_loss
from dasl_core.methods.moco_v3 import moco_v3_loss
from dasl_core.methods.vicreg import vicreg_loss

TWO = torch.randn(2, 4, 3)
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "embeddings of nt_xent": lambda x: nt_xent(x, 0.1),
    "embeddings of hard_negative_loss": lambda x: hard_negative_loss(x, 0.1, 0.1, 1.0),
    "embeddings of vicreg_loss": lambda x: vicreg_loss(x, 25.0, 25.0, 1.0),
    "predictions of byol_loss": lambda x: byol_loss(x, TWO),
    "targets of byol_loss": lambda x: byol_loss(TWO, x),
    "queries of moco_v3_loss": lambda x: moco_v3_loss(x, TWO, 0.1),
    "keys of moco_v3_loss": lambda x: moco_v3_loss(TWO, x, 0.1),
}


@pytest.mark.parametrize("shape", [(8, 3), (1, 4, 3), (3, 4, 3)])
@pytest.mark.parametrize("what", LOSSES)
def test_another_shape_is_refused_by_name(what: str, shape: tuple[int, ...]) -> None:
    name = what.partition(" ")[0]
    with pytest.raises(ValueError, match=f"{name} must have the shape"):
        LOSSES[what](torch.randn(shape))
    assert LOSSES[what](TWO).isfinite()
