"""Two SimCLR views as others make them: torchvision v2, lightly and kornia.

All have the parameters of lightly's `SimCLRTransform`: crops of 8 to 100 % of the area, flips, jitter of
strength 1 with probability 0.8, grayscale 0.2, blur 0.5 with sigma 0.1 to 2, ImageNet's normalization.
"""

import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.data.sources import Source

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JITTER = (0.8, 0.8, 0.8, 0.2)
CROP_SCALE, SIGMA = (0.08, 1.0), (0.1, 2.0)

Decode = Callable[[bytes], Any]
Transform = Callable[[Any], Any]


def decode_pillow(content: bytes) -> Image.Image:
    """Decode as `torchvision.datasets.ImageFolder` does."""
    return Image.open(io.BytesIO(content)).convert("RGB")


def decode_tensor(content: bytes) -> Tensor:
    """Decode to (3, H, W) uint8 with torchvision."""
    from torchvision.io import ImageReadMode, decode_image

    with warnings.catch_warnings():  # deprecated, but still torchvision's own decoder
        warnings.simplefilter("ignore")
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        pixels: Tensor = decode_image(data, ImageReadMode.RGB)
    return pixels


class Twice:
    """Apply a transform twice."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> list[Any]:
        return [self.transform(image), self.transform(image)]


def torchvision_views(size: int) -> Transform:
    """Return torchvision's v2 transforms, for images of Pillow and for uint8 tensors."""
    from torchvision.transforms import v2

    blur = v2.GaussianBlur(kernel_size=_kernel(size), sigma=SIGMA)
    return Twice(
        v2.Compose(
            [
                v2.RandomResizedCrop(size, scale=CROP_SCALE, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(*JITTER)], p=0.8),
                v2.RandomGrayscale(0.2),
                v2.RandomApply([blur], p=0.5),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )
    )


def lightly_views(size: int) -> Transform:
    """Return lightly's transforms with their defaults."""
    from lightly.transforms import SimCLRTransform

    transform: Transform = SimCLRTransform(input_size=size)
    return transform


def kornia_views(size: int) -> nn.Module:
    """Return kornia's transforms of a batch (B, 3, H, W) in 0..1."""
    import kornia.augmentation as K

    return K.AugmentationSequential(  # type: ignore[no-any-return]
        K.RandomResizedCrop((size, size), scale=CROP_SCALE),
        K.RandomHorizontalFlip(),
        K.ColorJitter(*JITTER, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur((_kernel(size),) * 2, SIGMA, p=0.5),
        K.Normalize(MEAN, STD),
        same_on_batch=False,
    )


class Resized:
    """Resize to a square, so that images make a batch: 8/7 of the views, as 256 pixels for 224."""

    def __init__(self, size: int) -> None:
        self.size = size * 8 // 7

    def __call__(self, image: Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional

        resized: Tensor = functional.resize(image, [self.size, self.size], antialias=True)
        return resized


class Images(Dataset[Any]):
    """Decoded and transformed images of a source."""

    def __init__(self, source: Source, decode: Decode, transform: Transform) -> None:
        self.source, self.decode, self.transform = source, decode, transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Any:
        return self.transform(self.decode(self.source.read(number)))


def loader(images: Dataset[Any], batch_size: int, workers: int) -> DataLoader[Any]:
    """Return a shuffling DataLoader whose workers stay between epochs."""
    return DataLoader(
        images,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


def _kernel(size: int) -> int:
    """Width of the blur's kernel: a tenth of the view, odd, as in the paper."""
    return max(3, size // 10 // 2 * 2 + 1)
