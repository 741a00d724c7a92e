"""One GPU, end to end: ``python -m benchmarks.gpu``, in under 9 minutes on an H100, without a network.

Trains a ResNet-50 with SimCLR and a ViT-S/16 with DINO at 224 pixels in bfloat16, from JPEGs that it
generates, through the image cache, as a job does. Compares that with

* the trainer's step on views that are already on the device, and the model alone: its forward, loss,
  backward and optimizer, without metrics, clipping and checks;
* lightly's parts: its transforms in a DataLoader, its heads and losses on the same network of timm.

It also measures the share of DAR and of SEC, the time of the views and of the copy, and profiles one step.
It needs numpy, pillow, pydantic, PyYAML, timm and torch, with what these require, and lightly for the
comparison; neither Ray nor the service. Every part has a time limit; what was cut is listed. `--tiny` runs all of it with tiny networks, to
test it on a CPU: its figures mean nothing.
"""

NEEDED = ("numpy", "pillow", "pydantic", "pyyaml", "timm", "torch")
"""Distributions that the measurements import, and `dasl_core` for them; a test hides all others."""
