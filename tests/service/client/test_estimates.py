"""Texts of estimates of jobs."""

from typing import Any

import pytest

from service.cli.estimates import described, facts_of


@pytest.mark.parametrize(
    ("steps", "epochs", "text", "facts"),
    [
        (4, 1, "4 steps in 1 epoch; ", "4 (4 an epoch, 1 epoch)"),
        (1, 1, "1 step in 1 epoch; ", "1 (1 an epoch, 1 epoch)"),
        (8000, 2000, "8,000 steps in 2,000 epochs; ", "8,000 (4 an epoch, 2,000 epochs)"),
    ],
)
def test_one_epoch_is_not_plural(steps: int, epochs: int, text: str, facts: str) -> None:
    sizes = ("checkpoints_bytes", "checkpoint_bytes", "image_cache_bytes", "state_bytes_per_worker")
    counts = ("train_images", "held_out_images", "backbone_parameters", "checkpoints_kept")
    estimate: dict[str, Any] = dict.fromkeys((*sizes, *counts), 0)
    estimate |= dict.fromkeys(("seconds", "activation_bytes_per_worker"))
    estimate |= {"total_steps": steps, "epochs": epochs, "steps_per_epoch": steps // epochs}
    assert described(estimate).startswith(text)
    assert dict(facts_of(estimate))["total steps"] == facts
