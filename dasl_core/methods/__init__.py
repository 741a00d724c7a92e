"""Pretraining methods, by name."""

from dasl_core.methods.base import Method, MethodOutput
from dasl_core.methods.simclr import SimCLR, nt_xent
from dasl_core.spec import JobSpec

REGISTRY: dict[str, type[Method]] = {"simclr": SimCLR}

__all__ = ["REGISTRY", "Method", "MethodOutput", "SimCLR", "build_method", "nt_xent"]


def build_method(spec: JobSpec) -> Method:
    """The method that a resolved spec names, with a backbone at random weights."""
    return REGISTRY[spec.method.name].from_spec(spec)
