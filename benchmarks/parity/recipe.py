"""The recipes that all three libraries follow. Imports nothing, since each library's Python reads it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """One data set's recipe: images, views and optimizer of every method.

    Attributes:
        mean, std: of the normalization, for each channel.
        warmup: epochs of linear warm-up, before a half cosine to 0.
        crop_scale: smallest share of the image that a crop keeps; the largest is 1.
        jitter: strength, as a factor of SimCLR's 0.8, 0.8, 0.8 and 0.2, with a probability of 0.8.
        momentum: of an EMA teacher at the start; it grows to 1 along a half cosine.
        margin: difference in points below which two libraries count as equivalent.
        most_seeds: no more are run, whatever the pilot says.
        methods: that are compared.
    """

    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    epochs: int
    crop_scale: float
    flip: float
    grayscale: float
    margin: float
    most_seeds: int
    methods: tuple[str, ...]
    batch_size: int = 32
    lr: float = 0.002
    weight_decay: float = 1e-4
    warmup: int = 1
    jitter: float = 0.5
    momentum: float = 0.97
    backbone: str = "test_resnet"
    width: int = 96

    def lengths(self, images: int) -> tuple[int, int]:
        """Return the steps of an epoch and of the training; the incomplete last batch is dropped."""
        return images // self.batch_size, images // self.batch_size * self.epochs


METHODS = ("simclr", "byol", "dino", "vicreg", "barlow_twins")
RECIPES = {
    "fashion": Recipe(
        image_size=28,
        mean=(0.449,),
        std=(0.226,),
        epochs=10,
        crop_scale=0.2,
        flip=0.5,
        grayscale=0.0,
        margin=1.0,
        most_seeds=5,
        methods=METHODS,
    ),
    "emoji": Recipe(
        image_size=32,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        epochs=12,
        crop_scale=0.7,
        flip=0.0,
        grayscale=0.1,
        margin=2.0,
        most_seeds=15,
        methods=("simclr", "dino"),
    ),
}
# Heads and losses. All three layers of VICReg and Barlow Twins are as wide as `outputs`.
HIDDEN, OUTPUTS, TEMPERATURE = 256, 128, 0.2  # SimCLR; BYOL's projector and predictor
EXPANDED, REDUNDANCY = 256, 0.005
BOTTLENECK, PROTOTYPES, STUDENT, TEACHER, CENTER = 64, 1024, 0.1, 0.04, 0.9  # DINO, temperatures
