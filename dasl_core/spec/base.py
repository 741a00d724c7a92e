"""What all parts of a spec share."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Auto = Literal["auto"]


class Part(BaseModel):
    """A part of a JobSpec: unknown keys are refused, and a spec never changes once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
