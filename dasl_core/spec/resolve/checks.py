"""Checks that span several parts of a spec."""

from typing import get_args

from dasl_core.spec.backbone import Backbone
from dasl_core.spec.backbones import CLASS_TOKENS, TESTED
from dasl_core.spec.evaluate import Holdout
from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import Problems
from dasl_core.spec.resolve.facts import DatasetFacts, training_classes
from dasl_core.spec.resolve.train import optimizer_name
from dasl_core.spec.train import Optimizer

SHARDED_METHODS = ("byol", "dino", "ibot", "simclr")
"""Methods that can be trained with `train.sharding: fsdp`."""


def check_ignored(spec: JobSpec, batch: int, problems: Problems) -> None:
    """Refuse settings that have no effect."""
    train = spec.train
    momentum, name = train.optimizer.momentum, optimizer_name(spec, batch)
    if name in ("adamw", "adam") and momentum != Optimizer().momentum:
        cause, instead = f"train.optimizer.name: {name}", "train.optimizer.name: sgd"
        problems.add_no_effect("train.optimizer.momentum", momentum, cause, instead)
    if name != "lars" and (larc := train.optimizer.larc) is not None:
        cause, instead = f"train.optimizer.name: {name}", "train.optimizer.name: lars"
        problems.add_no_effect("train.optimizer.larc", larc, cause, instead)
    if train.cut_init is not None and spec.backbone.pretrained is not None:
        problems.add(
            "train.cut_init",
            "divides random initial weights, and backbone.pretrained has others",
            f"{train.cut_init:g}",
            "null, or backbone.pretrained: null",
        )
    if train.checkpoint_activations and not spec.backbone.info.tested:
        problems.add(
            "train.checkpoint_activations",
            f"must be false for {spec.backbone.name}: the blocks of its family are not known",
            "true",
            f"false, or a backbone of one of the families {', '.join(TESTED)}",
        )
    if spec.evaluate.dataset is not None and spec.evaluate.holdout not in (None, Holdout()):
        instead = "evaluate.dataset: null"
        problems.add_no_effect("evaluate.holdout", None, "evaluate.dataset", instead)
    if (gallery := spec.evaluate.gallery) is not None and not spec.evaluate.retrieval:
        cause, instead = "evaluate.retrieval: []", "evaluate.retrieval: [1]"
        problems.add_no_effect("evaluate.gallery", gallery, cause, instead)


def check_sharding(spec: JobSpec, batch: int, problems: Problems) -> None:
    """Check that the method, the network and the optimizer can be sharded."""
    train, backbone = spec.train, spec.backbone
    if train.sharding == "none":
        return
    checks = (
        (
            spec.method.name in SHARDED_METHODS,
            f"method.name: {spec.method.name} cannot be sharded",
            f"one of the methods {', '.join(SHARDED_METHODS)}",
        ),
        (
            backbone.info.family in CLASS_TOKENS,
            f"backbone.name: {backbone.name} is not in timm's families vit and eva, which have blocks to shard",
            "a Vision Transformer, such as vit_large_patch16_224",
        ),
        (
            optimizer_name(spec, batch) != "lars",
            "train.optimizer.name: lars needs the norms of whole weights",
            "train.optimizer.name: adamw",
        ),
        (
            not train.compile,
            "train.compile: true compiles whole backbones, which are sharded by block",
            "train.compile: false",
        ),
        (
            train.channels_last is not True,
            "train.channels_last: true is a memory layout that FSDP does not support",
            "train.channels_last: false",
        ),
    )
    for is_met, reason, instead in checks:
        if not is_met:
            problems.add(
                "train.sharding", f"must be none: {reason}", "'fsdp'", f"'none', or {instead}"
            )


def check_backbone(spec: JobSpec, has_weights: bool, problems: Problems) -> None:
    """Check that the backbone has the class token, batch normalization and blocks of its settings."""
    backbone = spec.backbone
    pooled = {"average_max": ("resnet",), "token": CLASS_TOKENS}.get(backbone.pooling)
    if pooled is not None and backbone.info.family not in pooled:
        problems.add(
            "backbone.pooling",
            f"is not known for {backbone.name}: timm pools it in other ways",
            repr(backbone.pooling),
            "'timm', or a " + ("ResNet" if "resnet" in pooled else "Vision Transformer"),
        )
    elif backbone.pooling == "token" and not backbone.info.class_token:
        problems.add(
            "backbone.pooling",
            f"is the class token, which {backbone.name} does not have",
            repr(backbone.pooling),
            "'timm', or a Vision Transformer with a class token, such as 'vit_small_patch16_224'",
        )
    if backbone.freeze_batch_norm != "none" and not backbone.info.batch_norm:
        problems.add(
            "backbone.freeze_batch_norm",
            f"has no effect on {backbone.name}, which has no batch normalization",
            repr(backbone.freeze_batch_norm),
            "'none', or a ResNet",
        )
    if backbone.freeze_blocks and not has_weights:
        problems.add(
            "backbone.freeze_blocks",
            "would keep random weights, since backbone.pretrained is null",
            str(backbone.freeze_blocks),
            "0, or backbone.pretrained with weights to start from",
        )
    elif backbone.freeze_blocks and not backbone.is_own:
        _check_blocks(backbone, problems)


def _check_blocks(backbone: Backbone, problems: Problems) -> None:
    """Check that some blocks of the backbone learn."""
    blocks = backbone.info.blocks
    if blocks is None:
        message = f"must be 0 for {backbone.name}, whose blocks timm does not tell apart"
    elif backbone.freeze_blocks >= blocks:
        message = f"leaves nothing of {backbone.name} to learn, which has {blocks} blocks"
    else:
        return
    most = f"at most {blocks - 1}" if blocks else "0"
    problems.add("backbone.freeze_blocks", message, str(backbone.freeze_blocks), most)


def check_labels(spec: JobSpec, facts: DatasetFacts, problems: Problems) -> None:
    """Check that the data set has the classes required by the spec."""
    classes, had = training_classes(spec, facts), facts.num_classes or 0
    left = "" if classes == had else f", {classes} of them for training"
    needing = []
    if spec.method.supervised:
        needing.append(("method.name", repr(spec.method.name), "a self-supervised method"))
    for each in spec.given_regularizers().values():
        if each.pair_labels == "class":
            others = get_args(type(each).model_fields["labels"].annotation)
            instead = " or ".join(repr(other) for other in others if other != "class")
            needing.append((f"{each.path()}.labels", "'class'", instead))
    if spec.train.samples_per_class not in ("auto", None):
        needing.append(("train.samples_per_class", str(spec.train.samples_per_class), "null"))
    for field, given, instead in needing:
        if classes < 2:
            problems.add(
                field,
                f"needs at least two classes; the data set has {had or 'none'}{left}",
                given,
                f"{instead}, or a data set with a folder for each of two or more classes",
            )
