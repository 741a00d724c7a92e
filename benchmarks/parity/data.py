"""The images that all three libraries train on, and the one evaluation of what they learned."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor

from benchmarks.learning import idx
from benchmarks.parity.recipe import RECIPES, Recipe
from dasl_core.evaluate import knn_accuracy, recall_at_k
from examples.emoji import unpack_emoji

FASHION_TRAIN = 4000


@dataclass(frozen=True)
class Images:
    """Images with their classes, uint8 (N, H, W) or (N, H, W, 3)."""

    pixels: np.ndarray
    classes: np.ndarray


def fashion(source: Path) -> tuple[Images, Images]:
    """Return the first training images of Fashion-MNIST and all of its test images."""
    parts = []
    for part, count in (("train", FASHION_TRAIN), ("t10k", None)):
        images = idx(source, f"{part}-images-idx3-ubyte")[16:].reshape(-1, 28, 28)
        labels = idx(source, f"{part}-labels-idx1-ubyte")[8:]
        parts.append(Images(images[:count], labels[:count].astype(np.int64)))
    return parts[0], parts[1]


def emoji() -> tuple[Images, Images]:
    """Return the emoji of every other class, and those of the classes between them, reduced."""
    side = RECIPES["emoji"].image_size
    pixels: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    classes: tuple[list[int], list[int]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(sorted(unpack_emoji(Path(folder)).iterdir())):
            for file in sorted(name.iterdir()):
                image = Image.open(file).convert("RGB").resize((side, side), Image.Resampling.BOX)
                pixels[number % 2].append(np.asarray(image))
                classes[number % 2].append(number)
    train, held_out = (
        Images(np.stack(images), np.array(labels))
        for images, labels in zip(pixels, classes, strict=True)
    )
    return train, held_out


def write(dataset: str, images: Images, folder: Path) -> None:
    """Write images as an array for lightly and stable-pretraining, and as files for DASL."""
    np.save(folder / f"{dataset}.npy", images.pixels)
    (folder / dataset).mkdir()
    for number, image in enumerate(images.pixels):
        Image.fromarray(image).save(folder / dataset / f"{number:05d}.png")


def evaluate(dataset: str, train: Images, test: Images, weights: dict[str, Tensor] | None) -> float:
    """Measure a backbone: k-NN accuracy on Fashion-MNIST, R@1 of emoji of other classes; in percent.

    Args:
        weights: None for raw pixels.
    """
    recipe = RECIPES[dataset]
    queries = features(recipe, test, weights)
    if dataset == "emoji":
        return 100 * recall_at_k(queries, test.classes, (1,))[1]
    bank = features(recipe, train, weights)
    return 100 * knn_accuracy(bank, train.classes, queries, test.classes)


@torch.no_grad()
def features(recipe: Recipe, images: Images, weights: dict[str, Tensor] | None) -> Tensor:
    """Return the features (N, D) of images: the backbone's, or pixels."""
    pixels = torch.from_numpy(np.array(images.pixels)) / 255
    if weights is None:
        return pixels.flatten(1)
    network = timm.create_model(recipe.backbone, num_classes=0, in_chans=len(recipe.mean)).eval()
    network.load_state_dict(weights)
    mean, std = torch.tensor(recipe.mean), torch.tensor(recipe.std)
    normalized = (pixels.reshape(*pixels.shape[:3], -1) - mean) / std
    return torch.cat([network(some) for some in normalized.permute(0, 3, 1, 2).split(500)])
