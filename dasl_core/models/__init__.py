"""Backbones, projection heads, EMA teachers, and BatchNorm over several processes."""

from dasl_core.models.ema import Teacher, cosine_momentum
from dasl_core.models.heads import DINOHead, deep_head, projection_head

__all__ = ["DINOHead", "Teacher", "cosine_momentum", "deep_head", "projection_head"]
