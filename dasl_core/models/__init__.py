"""Backbones, projection heads, EMA teachers, and BatchNorm over several processes."""
