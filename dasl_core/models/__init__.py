"""Backbones, heads and what they need on several processes."""
