"""The spec of a pretraining job: pydantic models, validation, and resolution of "auto".

Does not import torch, so that an API process, which only validates specs, starts in about a second.
"""

from dasl_core.spec.advice import Advice, advise
from dasl_core.spec.augment import Augment
from dasl_core.spec.backbone import Backbone
from dasl_core.spec.backbones import BACKBONES, OWN_BACKBONE, BackboneInfo
from dasl_core.spec.branch import branch_problems
from dasl_core.spec.errors import field_problems
from dasl_core.spec.evaluate import Evaluate, FineTune, GroupRule, Holdout, KMeans, Knn, LinearProbe
from dasl_core.spec.job import Checkpoints, JobSpec, Resources
from dasl_core.spec.methods import METHODS, MethodConfig, MethodSettings
from dasl_core.spec.methods.simclr import SimCLR
from dasl_core.spec.normalization import Normalization, recorded_normalization
from dasl_core.spec.problems import FieldProblem, SpecError
from dasl_core.spec.regularizers import (
    DAR,
    DEFAULT_SHARE,
    REGULARIZERS,
    SEC,
    Clusters,
    RegularizerConfig,
    ResolvedClusters,
    ResolvedDAR,
    ResolvedSEC,
)
from dasl_core.spec.resolve import (
    DatasetFacts,
    Estimate,
    estimate,
    evaluation_problem,
    precision_with,
    resolve,
    seconds_on_cores,
)
from dasl_core.spec.resolved import (
    ResolvedAugment,
    ResolvedBackbone,
    ResolvedEvaluate,
    ResolvedJobSpec,
    ResolvedOptimizer,
    ResolvedResources,
    ResolvedTrain,
    ViewAugment,
)
from dasl_core.spec.track import MLflow, Track, WandB
from dasl_core.spec.train import Clip, Optimizer, Stop, Train
from dasl_core.spec.weights_record import WeightsRecord, read_record
from dasl_core.spec.yaml import apply_overrides, dump_yaml, load_spec

__all__ = [
    "BACKBONES",
    "DAR",
    "DEFAULT_SHARE",
    "METHODS",
    "OWN_BACKBONE",
    "REGULARIZERS",
    "SEC",
    "Advice",
    "Augment",
    "Backbone",
    "BackboneInfo",
    "Checkpoints",
    "Clip",
    "Clusters",
    "DatasetFacts",
    "Estimate",
    "Evaluate",
    "FieldProblem",
    "FineTune",
    "GroupRule",
    "Holdout",
    "JobSpec",
    "KMeans",
    "Knn",
    "LinearProbe",
    "MLflow",
    "MethodConfig",
    "MethodSettings",
    "Normalization",
    "Optimizer",
    "RegularizerConfig",
    "ResolvedAugment",
    "ResolvedBackbone",
    "ResolvedClusters",
    "ResolvedDAR",
    "ResolvedEvaluate",
    "ResolvedJobSpec",
    "ResolvedOptimizer",
    "ResolvedResources",
    "ResolvedSEC",
    "ResolvedTrain",
    "Resources",
    "SimCLR",
    "SpecError",
    "Stop",
    "Track",
    "Train",
    "ViewAugment",
    "WandB",
    "WeightsRecord",
    "advise",
    "apply_overrides",
    "branch_problems",
    "dump_yaml",
    "estimate",
    "evaluation_problem",
    "field_problems",
    "load_spec",
    "precision_with",
    "read_record",
    "recorded_normalization",
    "resolve",
    "seconds_on_cores",
]
