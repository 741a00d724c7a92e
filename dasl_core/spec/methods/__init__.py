"""Settings of each pretraining method, discriminated by `name`.

The settings of a method are in the module of its name here, because the API validates them in a process
without torch; its code is in the module of the same name in `dasl_core.methods`.
"""

from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dasl_core.spec.methods.config import (
    METHODS,
    RESOLVED_METHODS,
    MethodConfig,
    Recipe,
    ResolveContext,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


if TYPE_CHECKING:  # a type checker cannot list the modules of a package
    MethodSettings = MethodConfig
    ResolvedMethodSettings = MethodConfig
else:
    MethodSettings = Annotated[
        reduce(or_, METHODS.values()),
        Field(discriminator="name", description="The pretraining method, chosen by `name`."),
    ]
    ResolvedMethodSettings = Annotated[
        reduce(or_, RESOLVED_METHODS.values()), Field(discriminator="name")
    ]

__all__ = [
    "METHODS",
    "RESOLVED_METHODS",
    "MethodConfig",
    "MethodSettings",
    "Recipe",
    "ResolveContext",
    "ResolvedMethodSettings",
]
