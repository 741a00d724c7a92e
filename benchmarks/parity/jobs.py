"""The process that trains: it reads jobs from a file, and writes the weights of each backbone."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.parity.recipe import RECIPES, Recipe

DONE = "done: "  # and the method


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        data: folder with the images as an array, and as a folder of files.
        weights: file for the weights of the trained backbone.
    """

    dataset: str
    method: str
    seed: int
    data: str
    weights: str

    @property
    def recipe(self) -> Recipe:
        """That of the data set."""
        return RECIPES[self.dataset]

    @property
    def array(self) -> Path:
        """The training images, uint8 (N, H, W) or (N, H, W, 3)."""
        return Path(self.data) / f"{self.dataset}.npy"


def run_jobs(train: Callable[[Job], dict[str, torch.Tensor] | nn.Module]) -> None:
    """Run the jobs of the file that the command line names, one after the other, on one thread.

    Args:
        train: returns the trained backbone or its weights.
    """
    torch.set_num_threads(1)
    for settings in json.loads(Path(sys.argv[1]).read_text()):
        job = Job(**settings)
        began = time.process_time()
        trained = train(job)
        weights = trained.state_dict() if isinstance(trained, nn.Module) else trained
        torch.save({"weights": weights, "seconds": time.process_time() - began}, job.weights)
        print(f"{DONE}{job.method}", flush=True)
