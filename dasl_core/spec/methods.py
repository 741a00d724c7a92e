"""Settings of each pretraining method, discriminated by `name`.

The code of a method lives in `dasl_core/methods/<name>.py`; its settings live here because the API
validates them in a process that has no torch.
"""

from typing import Annotated, Literal

from pydantic import Field

from dasl_core.spec.base import Auto, Part


class SimCLR(Part):
    """SimCLR: NT-Xent over two views (Chen et al., ICML 2020, https://arxiv.org/abs/2002.05709)."""

    name: Literal["simclr"] = "simclr"
    temperature: float = Field(0.2, gt=0, le=10, description="Divides the cosine similarities.")
    projection_dim: int = Field(
        128, ge=2, le=8192, description="Width of the embedding the loss sees."
    )
    hidden_dim: Annotated[int, Field(ge=1, le=65_536)] | Auto = Field(
        "auto",
        description="Width of the projection head's hidden layer; \"auto\": the backbone's width.",
    )


# A union of one today; a second method joins it here and in `dasl_core/methods`.
MethodSettings = Annotated[SimCLR, Field(description="The pretraining method, chosen by `name`.")]

METHODS: dict[str, type[Part]] = {"simclr": SimCLR}
