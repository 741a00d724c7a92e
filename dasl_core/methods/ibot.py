"""iBOT (Zhou et al., "iBOT: Image BERT Pre-Training with Online Tokenizer", ICLR 2022), with the choices of
DINOv2 (Oquab et al., TMLR 2024)."""

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from dasl_core.distributed import all_reduce_sum, gather_views, mean_over_ranks
from dasl_core.methods.base import BuildInputs, Outputs, Step, by_size
from dasl_core.methods.dino import GLOBAL_VIEWS, dino_loss, temperature_warmup
from dasl_core.methods.ema_teacher import EMATeacherMethod
from dasl_core.methods.swav import sinkhorn
from dasl_core.models.ema import Teacher
from dasl_core.models.heads import DINOHead
from dasl_core.models.masked_vit import block_mask, check_has_tokens, patch_grid, vit_tokens
from dasl_core.regularizers.koleo import koleo_loss
from dasl_core.spec.methods.ibot import ResolvedIBOT
from dasl_core.tensors import check_temperature, full_precision, to_device

SINKHORN_ITERATIONS = 3


class TokenHeads(nn.Module):
    """The head of class tokens and that of patches, which may be the same."""

    def __init__(self, class_head: DINOHead, patch_head: DINOHead | None) -> None:
        """Build from two heads; None: patches share the head of class tokens."""
        super().__init__()
        self.class_head, self.separate_head = class_head, patch_head

    @property
    def patch_head(self) -> DINOHead:
        return self.class_head if self.separate_head is None else self.separate_head


class IBOT(EMATeacherMethod, name="ibot"):
    """iBOT: DINO, whose student also predicts the teacher's outputs for patches that are hidden from it.

    Attributes:
        grid: height and width of a global view, in patches.
    """

    settings: ResolvedIBOT
    centers: Tensor
    """(2, K): the moving means of the teacher's outputs for class tokens and for patches; none with
    ``centering: sinkhorn``."""

    def __init__(self, settings: ResolvedIBOT, inputs: BuildInputs) -> None:
        super().__init__(settings, inputs)
        network, backbone, features = inputs.network, inputs.backbone, inputs.features
        check_has_tokens(network, backbone.name)
        view = torch.empty(1, backbone.in_channels, backbone.image_size, backbone.image_size)
        self.grid = patch_grid(network, view)
        widths = (features, settings.hidden_dim, settings.bottleneck_dim, settings.out_dim)
        self.heads = TokenHeads(
            DINOHead(*widths), None if settings.shared_head else DINOHead(*widths)
        )
        self.teacher = Teacher(network, self.heads)
        self.mask_token = nn.Parameter(torch.zeros(features))
        self.teacher_temperature = temperature_warmup(settings)
        if settings.centering == "ema":
            self.register_buffer("centers", torch.zeros(2, settings.out_dim))
        # Of this step: the mean teacher outputs (2, K), and metrics.
        self._means: Tensor | None = None
        self._metrics: dict[str, Tensor] = {}

    def draw_masks(self, image_seeds: Sequence[int]) -> Tensor:
        """Draw the masks (B, 2, P) of the global views."""
        return torch.stack([self._image_masks(random.Random(seed)) for seed in image_seeds])

    def _image_masks(self, source: random.Random) -> Tensor:
        masks = torch.zeros(GLOBAL_VIEWS, *self.grid, dtype=torch.bool)
        for mask in masks:
            if source.random() < self.settings.mask_probability:
                ratio = source.uniform(*self.settings.mask_ratio)
                mask.copy_(block_mask(*self.grid, ratio, source))
        return masks.flatten(1)

    def forward(self, views: Sequence[Tensor], masks: Tensor | None = None) -> Outputs:
        """Compute the bottlenecks of student and teacher; `loss` multiplies them with the last layers.

        Where patches are masked is read on the CPU, so that no step waits for the device to count them.

        Args:
            views: of the batch, the global ones first.
            masks: (B, 2, P) of `draw_masks`, on the CPU; None: no patch is masked.

        Returns:
            ``embeddings``: the student's for the class tokens of the global views, (2, B, h);
            ``student``: those of all views, (V, B, h); ``teacher``: the teacher's of the global views,
            (2, B, h); ``class_tokens``: the student's, before the head, (2, B, D). Of at most M masked
            patches of each image: ``student_patches`` and ``teacher_patches`` (2, B, M, h), and
            ``patch_weights`` (2, B, M) on the CPU, their weights in the image's mean; 0 if an image has
            fewer.
        """
        whole = torch.cat(list(views[:GLOBAL_VIEWS]))
        hidden = None if masks is None else masks.transpose(0, 1).flatten(0, 1)  # (2B, P)
        class_tokens, patches = vit_tokens(
            self.backbone,
            whole,
            None if hidden is None else to_device(hidden, whole.device),
            self.mask_token,
        )
        self.collected(class_tokens)
        self.collected(patches)
        local = [
            self.collected(vit_tokens(self.backbone, crops)[0])
            for crops in by_size(views[GLOBAL_VIEWS:])
        ]
        student = self.embedding_head(torch.cat([class_tokens, *local]))
        with torch.no_grad():
            teacher_tokens, teacher_patches = vit_tokens(self.teacher.backbone, whole)
            teacher = self.teacher_heads.class_head.mlp(teacher_tokens)
        if hidden is None:
            hidden = torch.zeros(patches.shape[:2], dtype=torch.bool)
            most = 0
        else:
            most = int(self.settings.mask_ratio[1] * hidden.shape[1])
        numbers = hidden.cumsum(dim=1)  # of the masked patches of each image, from 1
        counts = numbers[:, -1:]
        weights = (torch.arange(most) < counts).to(full_precision(class_tokens).dtype)
        weights = weights / counts.clamp(min=1)
        rows, places = (hidden & (numbers <= most)).nonzero(as_tuple=True)
        at = to_device(torch.stack([rows, places, numbers[rows, places] - 1]), whole.device)
        outputs = {
            "embeddings": student[: len(whole)],
            "student": student,
            "teacher": teacher,
            "class_tokens": class_tokens,
            "student_patches": _embed_patches(self.heads.patch_head, patches, at, most),
            "patch_weights": weights,
        }
        with torch.no_grad():
            outputs["teacher_patches"] = _embed_patches(
                self.teacher_heads.patch_head, teacher_patches, at, most
            )
        samples = len(views[0])
        return {name: value.unflatten(0, (-1, samples)) for name, value in outputs.items()}

    @property
    def embedding_head(self) -> nn.Module:
        """The student's head of class tokens, up to the bottleneck."""
        return self.heads.class_head.mlp

    def embed(self, images: Tensor) -> Tensor:
        """Compute the bottleneck of the class tokens, which timm's features are not for every ViT."""
        embeddings: Tensor = self.embedding_head(vit_tokens(self.backbone, images)[0])
        return embeddings

    @property
    def student_head(self) -> nn.Module:
        return self.heads

    @property
    def teacher_heads(self) -> "TokenHeads":
        assert isinstance(self.teacher.head, TokenHeads), "it is a copy of the student's"
        return self.teacher.head

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        self._expect_update(step)
        temperature = self.teacher_temperature(step.epoch)
        weights = outputs["patch_weights"].detach()  # on the CPU
        device = outputs["student"].device
        masked = tuple(to_device(weights.nonzero().T, device))
        shares = to_device(weights[weights != 0] / (weights.shape[0] * weights.shape[1]), device)
        with torch.no_grad():
            teacher = self.teacher_heads.class_head.outputs(outputs["teacher"])  # (2, B, K)
            targets = self._targets(teacher.flatten(0, 1), 0, temperature, step.group)
            targets = targets.view_as(teacher)
            patches = self.teacher_heads.patch_head.outputs(
                outputs["teacher_patches"][masked]
            )  # (M', K)
            patch_targets = self._targets(patches, 1, temperature, step.group)
            self._observe(teacher, patches, targets, step.group)
        student = self.heads.class_head.outputs(outputs["student"])
        loss = dino_loss(targets, student, self.settings.student_temperature)
        predictions = self.heads.patch_head.outputs(outputs["student_patches"][masked])
        patch_loss = masked_patch_loss(
            patch_targets, predictions, shares, self.settings.student_temperature
        )
        self._metrics["patch_loss"] = patch_loss.detach()
        loss = loss + patch_loss
        if self.settings.koleo:
            tokens = gather_views(full_precision(outputs["class_tokens"]), step.group)
            images = torch.arange(tokens.shape[1], device=tokens.device)
            koleo = torch.stack([koleo_loss(view, images) for view in tokens]).sum()
            self._metrics["koleo"] = koleo.detach()
            loss = loss + self.settings.koleo * koleo
        return loss

    def _targets(
        self, outputs: Tensor, center: int, temperature: float, group: ProcessGroup | None
    ) -> Tensor:
        """Turn the teacher's outputs (N, K) for class tokens (center 0) or patches (1) into distributions."""
        if self.settings.centering == "sinkhorn":
            return sinkhorn(outputs, temperature, SINKHORN_ITERATIONS, group)
        return F.softmax((outputs - self.centers[center]) / temperature, dim=-1)

    def _observe(
        self, teacher: Tensor, patches: Tensor, targets: Tensor, group: ProcessGroup | None
    ) -> None:
        """Keep what `before_update` and `metrics` need of a step."""
        entropy = torch.special.entr(targets).sum(dim=-1).mean()
        mean, usage = mean_over_ranks(
            torch.stack([teacher.mean(dim=(0, 1)), targets.mean(dim=(0, 1))]), group
        )
        self._metrics = {
            "output_entropy": entropy,
            "output_usage": torch.special.entr(usage).sum(),
        }
        if self.settings.centering == "ema":
            # Ranks have different numbers of masked patches, perhaps none.
            count = patches.new_full((1,), len(patches))
            sums = all_reduce_sum(torch.cat([patches.sum(dim=0), count]), group)
            center = torch.where(sums[-1] > 0, sums[:-1] / sums[-1], self.centers[1])
            self._means = torch.stack([mean, center])

    @torch.no_grad()
    def before_update(self, step: Step) -> None:
        super().before_update(step)
        # The centers are updated only after the batch was compared with the old ones. A skipped step
        # restores them, like all buffers.
        if self.settings.centering == "ema":
            assert self._means is not None, "loss comes first"
            self.centers.lerp_(self._means, 1 - self.settings.center_momentum)
        if step.epoch < self.settings.freeze_last_layer_epochs:
            for head in (self.heads.class_head, self.heads.patch_head):
                head.last_layer.weight.grad = None

    def metrics(self, outputs: Outputs, step: Step) -> dict[str, Tensor]:
        """Entropy of the targets of class tokens and usage of the outputs, as DINO's; parts of the loss.

        ``patch_loss``: that of masked patches; ``koleo``: KoLeo before its weight.
        """
        settings = {
            "num_outputs": torch.tensor(self.settings.out_dim),
            "teacher_temperature": torch.tensor(self.teacher_temperature(step.epoch)),
        }
        return super().metrics(outputs, step) | self._metrics | settings


def _embed_patches(head: DINOHead, patches: Tensor, at: Tensor, most: int) -> Tensor:
    """Compute the bottleneck (N, most, h) of some patch tokens of (N, P, D), 0 where an image has fewer.

    Args:
        at: (3, M) int64 on the device, of each patch: its image, its place among the tokens, and its place in
            the result.
    """
    images, places, slots = at
    embedded: Tensor = head.mlp(patches[images, places])
    embeddings = embedded.new_zeros(len(patches), most, embedded.shape[-1])
    embeddings[images, slots] = embedded
    return embeddings


def masked_patch_loss(
    targets: Tensor, outputs: Tensor, weights: Tensor, temperature: float
) -> Tensor:
    """Compute iBOT's loss of masked patches: the weighted sum of their cross-entropies (eq. 2).

    It is the mean over images of their masked patches' mean if each weight is 1 by the number of images
    and by that of the image's masked patches; images without any count with 0.

    Args:
        targets: (M, K), the teacher's distributions; they get no gradient.
        outputs: (M, K), the student's outputs; float16 and bfloat16 are computed in float32.
        weights: (M,).
        temperature: divides the student's outputs.

    Raises:
        ValueError: a shape differs from these, or `temperature` is not above 0.
    """
    if targets.dim() != 2 or outputs.shape != targets.shape or weights.shape != targets.shape[:1]:
        raise ValueError(
            "targets, outputs and weights must have the shapes (M, K), (M, K) and (M,); given "
            f"{tuple(targets.shape)}, {tuple(outputs.shape)} and {tuple(weights.shape)}"
        )
    check_temperature(temperature)
    with torch.autocast(outputs.device.type, enabled=False):
        logs = F.log_softmax(full_precision(outputs) / temperature, dim=-1)
        return -((targets.detach() * logs).sum(dim=-1) * weights).sum()
