"""Checks that span several parts of a spec."""

from dasl_core.spec.backbone import Backbone
from dasl_core.spec.backbones import CLASS_TOKENS, TESTED
from dasl_core.spec.evaluate import Holdout
from dasl_core.spec.job import JobSpec
from dasl_core.spec.problems import FieldProblem
from dasl_core.spec.regularizers import Clusters
from dasl_core.spec.resolve.epochs import epochs_of
from dasl_core.spec.resolve.facts import DatasetFacts, training_classes, training_images
from dasl_core.spec.resolve.regularizers import UNUSED_CLUSTERS, resolve_clusters
from dasl_core.spec.resolve.train import optimizer_name
from dasl_core.spec.rivals import PairRival
from dasl_core.spec.train import Optimizer


def check_ignored(spec: JobSpec, batch: int, problems: list[FieldProblem]) -> None:
    """Refuse settings without effect: the user who wrote them expects one."""
    dar, sec, train, epochs = spec.dar, spec.sec, spec.train, epochs_of(spec)
    if dar is not None:
        for name, field in Clusters.model_fields.items():
            given = getattr(dar.clusters, name)
            unused = (field.default, getattr(UNUSED_CLUSTERS, name))
            if dar.labels != "cluster" and given not in unused:
                problems.append(
                    _ignored(
                        f"dar.clusters.{name}",
                        given,
                        f"dar.labels: {dar.labels}",
                        "dar.labels: cluster",
                    )
                )
        by_kmeans = resolve_clusters(dar.clusters, spec.method, images=2).source == "kmeans"
        if dar.labels == "cluster" and by_kmeans and dar.clusters.every_epochs >= epochs:
            problems.append(
                FieldProblem(
                    "dar.clusters.every_epochs",
                    "must be less than train.epochs: the images would never be clustered",
                    str(dar.clusters.every_epochs),
                    f"at most {epochs - 1}" if epochs > 1 else "",
                )
            )
    if sec is not None and sec.target == "zero" and sec.momentum != 1:
        problems.append(
            _ignored("sec.momentum", sec.momentum, "sec.target: zero", "sec.target: mean")
        )
    momentum, name = train.optimizer.momentum, optimizer_name(spec, batch)
    if name in ("adamw", "adam") and momentum != Optimizer().momentum:
        problems.append(
            _ignored(
                "train.optimizer.momentum",
                momentum,
                f"train.optimizer.name: {name}",
                "train.optimizer.name: sgd",
            )
        )
    if train.cut_init is not None and spec.backbone.pretrained is not None:
        problems.append(
            FieldProblem(
                "train.cut_init",
                "divides random initial weights, and backbone.pretrained has others",
                f"{train.cut_init:g}",
                "null, or backbone.pretrained: null",
            )
        )
    if train.checkpoint_activations and not spec.backbone.info.tested:
        problems.append(
            FieldProblem(
                "train.checkpoint_activations",
                f"must be false for {spec.backbone.name}: the blocks of its family are not known",
                "true",
                f"false, or a backbone of one of the families {', '.join(TESTED)}",
            )
        )
    if spec.evaluate.dataset is not None and spec.evaluate.holdout not in (None, Holdout()):
        problems.append(
            _ignored("evaluate.holdout", None, "evaluate.dataset", "evaluate.dataset: null")
        )
    if spec.evaluate.gallery is not None and not spec.evaluate.retrieval:
        problems.append(
            _ignored(
                "evaluate.gallery",
                spec.evaluate.gallery,
                "evaluate.retrieval: []",
                "evaluate.retrieval: [1]",
            )
        )


def check_backbone(spec: JobSpec, has_weights: bool, problems: list[FieldProblem]) -> None:
    """Check that the backbone has what its settings name: a class token, batch normalization, blocks."""
    backbone = spec.backbone
    pooled = {"average_max": ("resnet",), "token": CLASS_TOKENS}.get(backbone.pooling)
    if pooled is not None and backbone.info.family not in pooled:
        problems.append(
            FieldProblem(
                "backbone.pooling",
                f"is not known for {backbone.name}: timm pools it in other ways",
                repr(backbone.pooling),
                "'timm', or a " + ("ResNet" if "resnet" in pooled else "Vision Transformer"),
            )
        )
    elif backbone.pooling == "token" and not backbone.info.class_token:
        problems.append(
            FieldProblem(
                "backbone.pooling",
                f"is the class token, which {backbone.name} does not have",
                repr(backbone.pooling),
                "'timm', or a Vision Transformer with a class token, such as 'vit_small_patch16_224'",
            )
        )
    if backbone.freeze_batch_norm != "none" and not backbone.info.batch_norm:
        problems.append(
            FieldProblem(
                "backbone.freeze_batch_norm",
                f"has no effect on {backbone.name}, which has no batch normalization",
                repr(backbone.freeze_batch_norm),
                "'none', or a ResNet",
            )
        )
    if backbone.freeze_blocks and not has_weights:
        problems.append(
            FieldProblem(
                "backbone.freeze_blocks",
                "would keep random weights, since backbone.pretrained is null",
                str(backbone.freeze_blocks),
                "0, or backbone.pretrained with weights to start from",
            )
        )
    elif backbone.freeze_blocks and not backbone.is_own:
        _check_blocks(backbone, problems)


def _check_blocks(backbone: Backbone, problems: list[FieldProblem]) -> None:
    """Check that some block of the backbone would learn."""
    blocks = backbone.info.blocks
    if blocks is None:
        message = f"must be 0 for {backbone.name}, whose blocks timm does not tell apart"
    elif backbone.freeze_blocks >= blocks:
        message = f"leaves nothing of {backbone.name} to learn, which has {blocks} blocks"
    else:
        return
    most = f"at most {blocks - 1}" if blocks else "0"
    problems.append(
        FieldProblem("backbone.freeze_blocks", message, str(backbone.freeze_blocks), most)
    )


def _ignored(field: str, given: object, cause: str, instead: str) -> FieldProblem:
    message = f"has no effect with {cause}; remove it or set {instead}"
    return FieldProblem(field, message, "" if given is None else str(given))


def check_labels(spec: JobSpec, facts: DatasetFacts, problems: list[FieldProblem]) -> None:
    """Check that the data set has the classes, and images for the clusters, that the spec needs."""
    classes, had = training_classes(spec, facts), facts.num_classes or 0
    left = "" if classes == had else f", {classes} of them for training"
    needing = []
    if spec.method.supervised:
        needing.append(("method.name", repr(spec.method.name), "a self-supervised method"))
    if spec.dar is not None and spec.dar.labels == "class":
        needing.append(("dar.labels", "'class'", "'instance' or 'cluster'"))
    for name, rival in spec.rivals.active().items():
        if isinstance(rival, PairRival) and rival.labels == "class":
            needing.append((f"rivals.{name}.labels", "'class'", "'instance'"))
    if spec.train.samples_per_class not in ("auto", None):
        needing.append(("train.samples_per_class", str(spec.train.samples_per_class), "null"))
    for field, given, instead in needing:
        if classes < 2:
            problems.append(
                FieldProblem(
                    field,
                    f"needs at least two classes; the data set has {had or 'none'}{left}",
                    given,
                    f"{instead}, or a data set with a folder for each of two or more classes",
                )
            )
    if spec.dar is None or spec.dar.labels != "cluster":
        return
    clusters, images = spec.dar.clusters, training_images(spec, facts)
    if clusters.k != "auto" and clusters.k > images:
        problems.append(
            FieldProblem(
                "dar.clusters.k",
                f"is more than the {images} images that the data set leaves for training",
                str(clusters.k),
                f"at most {images}",
            )
        )
