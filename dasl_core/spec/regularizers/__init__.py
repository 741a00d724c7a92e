"""Settings of the regularizers: DAR, SEC, and those to compare them with.

Each regularizer has a module of its name in this package, and one with its code in `dasl_core.regularizers`.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from dasl_core.spec.base import SpecModel
from dasl_core.spec.regularizers.config import (
    DEFAULT_SHARE,
    REGULARIZERS,
    RegularizerConfig,
    RegularizerContext,
)
from dasl_core.spec.regularizers.dar import DAR, Clusters, ResolvedClusters, ResolvedDAR
from dasl_core.spec.regularizers.sec import SEC, ResolvedSEC

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def _field(config: type[RegularizerConfig]) -> tuple[Any, Any]:
    summary = (config.__doc__ or "").partition("\n")[0]
    return config | None, Field(None, description=summary)


if TYPE_CHECKING:  # a type checker cannot list the modules of a package
    Regularizers = SpecModel
else:
    Regularizers = create_model(
        "Regularizers",
        __base__=SpecModel,
        __module__=__name__,
        __doc__="Regularizers to compare DAR and SEC with; any number of them can be on.",
        **{name: _field(config) for name, config in REGULARIZERS.items() if not config.top_level},
    )

__all__ = [
    "DAR",
    "DEFAULT_SHARE",
    "REGULARIZERS",
    "SEC",
    "Clusters",
    "RegularizerConfig",
    "RegularizerContext",
    "Regularizers",
    "ResolvedClusters",
    "ResolvedDAR",
    "ResolvedSEC",
]
