"""Settings of the network that is pretrained."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from dasl_core.spec.backbones import BACKBONES, OWN_BACKBONE, OWN_INFO, BackboneInfo, Stem
from dasl_core.spec.base import Auto, SpecModel, problem
from dasl_core.spec.errors import closest
from dasl_core.spec.fields import (
    ChannelMeans,
    Channels,
    ChannelStds,
    DropPath,
    FrozenBatchNorm,
    ImageSize,
    PixelType,
    Pooling,
    Window,
)


class Percentiles(SpecModel):
    """A window by percentiles of the data set's values."""

    percentiles: tuple[Annotated[float, Field(ge=0, le=100)], Annotated[float, Field(ge=0, le=100)]]
    """The window is between these two percentiles of the raw values: 0 <= low < high <= 100."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.percentiles[0] >= self.percentiles[1]:
            raise problem(
                "must increase",
                list(self.percentiles),
                "two percentiles: low, then a larger high, such as [0.1, 99.9]",
                field="backbone.window.percentiles",
            )
        return self


class Backbone(SpecModel):
    """The network that is pretrained: a timm model that gives features."""

    name: str = Field("resnet18", max_length=200)
    """A timm model; `GET /v1/catalog/backbones` lists them, and says which families are tested."""
    image_size: ImageSize | Auto = "auto"
    """Height and width of the network's input, in pixels. "auto": the median of the images' shorter sides,
    rounded down to a multiple of 32, or of 8 up to 64 with a stem for small images; at least 32 and at most
    224; at least 96 for a ResNet with its standard stem whose images have 40 pixels or more; for a ViT, rounded down further to a multiple of its patch size; for a network that takes one size
    only, that size; for the checkpoint of a ViT, its size; at least what the network can compute."""
    in_channels: Channels | Auto = "auto"
    """Channels of the network's input. 3 reads all images as RGB, 1 as luminance; other numbers need images
    with that number of bands. "auto": that of the checkpoint of `pretrained`; else 3 for images of gray and
    color, also with transparency or as CMYK, and for others the number of their bands."""
    pixel_type: PixelType | Auto = "auto"
    """Type of the images' values, "auto": that of the data set, and no other. In evaluations and embeddings values of
    8 bits count times 257 where it is uint16; where it is float32 values of 8 and 16 bits become 0 to 1."""
    window: Window | Percentiles | Auto = "auto"
    """The raw values [low, high] that become 0 and 1; values beyond them are clamped. Or `{percentiles: [low,
    high]}` of the data set's values. "auto": [0, 255] for 8-bit images; for others the percentiles 0.1 and
    99.9, or if these are equal, the smallest and the largest value; where no values were measured, or all are
    equal, the range of the type: [0, 65535] for uint16, [-32768, 32767] for int16, [0, 1] for float32."""
    stem: Stem | Auto = "auto"
    """ "standard" is timm's own stem. "small" keeps the resolution of small images: the first convolution of a
    ResNet gets stride 1 and its max-pooling is removed; a ViT gets patches of an eighth of the image side.
    "auto": the stem of the weights of `pretrained`; for random weights "small" for a ResNet up to an
    `image_size` of 39 and for a ViT up to 64, else "standard"."""
    pretrained: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Weights to start from: a path or file:// URI on the workers. Either the folder of a downloaded
    checkpoint of the same network, or a file of timm weights (.safetensors, .pth, .pt, .bin), which timm
    adapts to `in_channels` (see `extra_bands`) and to the image size of a ViT. null: random weights."""
    extra_bands: Literal["repeat", "mean", "random"] = "repeat"
    """How a file of weights for RGB is adapted to other `in_channels` than 1 and 3, with outputs of the same
    scale. "repeat": as timm does, RGBRGB..., times 3 / `in_channels`. "mean": each band gets the mean of the
    weights of R, G and B, times 3 / `in_channels`. "random": the first three bands keep theirs, further ones
    get random weights of the same size, all times the square root of 3 / `in_channels`."""
    mean: ChannelMeans | Auto = "auto"
    """Mean of each channel by which images are normalized, in units of the window, in training, evaluation
    and the exported preprocessing. "auto": that with which the weights of `pretrained` were trained, and an
    error if it is unknown; for random weights ImageNet's, and for images of more than 8 bits, another window
    or other `in_channels` than 1 and 3 that of the data set, or 0.5 if it was not measured."""
    std: ChannelStds | Auto = "auto"
    """Standard deviation of each channel, in the same units. "auto": as for `mean`, or 0.25."""
    pooling: Pooling | Auto = "auto"
    """How the last feature map becomes one vector. "timm": as in timm, for a ResNet the average.
    "average_max": the mean of the average and the maximum, for a ResNet. "token": the class token of a Vision
    Transformer, such as DINOv3's, of which timm averages the patches. "auto": "token" for DINOv3, and for
    ibot; else "timm"."""
    freeze_batch_norm: FrozenBatchNorm | Auto = "auto"
    """Batch normalization of pretrained weights: "statistics" keeps its means and variances, which normalize
    in training as in evaluation; "all" keeps its weights and biases, too. The heads' batch normalization
    learns in any case. "auto": "none"."""
    freeze_blocks: int = Field(0, ge=0, le=1000)
    """Keep the weights of the stem and of this many first blocks of pretrained weights, which saves time and
    forgets less; 0 trains all. Batch normalization in them follows `freeze_batch_norm`."""
    drop_path: DropPath | Auto = "auto"
    """Stochastic depth: fraction of residual branches dropped in training. "auto": 0."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in BACKBONES and name != OWN_BACKBONE:
            raise problem(
                "is not a backbone this version can train" + closest(name, BACKBONES),
                name,
                "the name of a timm model, such as 'resnet50', 'convnext_tiny' or 'vit_small_patch16_dinov3'",
            )
        return name

    @property
    def is_own(self) -> bool:
        """Whether the network is passed by the user, not built by timm."""
        return self.name == OWN_BACKBONE

    @property
    def may_have_weights(self) -> bool:
        """Whether the network may start from weights that are not random."""
        return self.is_own or self.pretrained is not None

    @property
    def info(self) -> BackboneInfo:
        return OWN_INFO if self.is_own else BACKBONES[self.name]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.is_own and self.pretrained is not None:
            raise problem(
                "must be null for a network of one's own: load the weights before passing it",
                self.pretrained,
                "null",
                field="backbone.pretrained",
            )
        for field in ("mean", "std"):
            values = getattr(self, field)
            if "auto" not in (values, self.in_channels) and len(values) != self.in_channels:
                raise problem(
                    f"has {len(values)} values for {self.in_channels} channels",
                    list(values),
                    f"'auto', or {self.in_channels} numbers: one for each of backbone.in_channels",
                    field=f"backbone.{field}",
                )
        return self
