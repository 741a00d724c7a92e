"""Random parameters of a view for `preview.json`."""

from typing import Any

from torch import Tensor

from dasl_core.data.views import Draws

_DECIMALS = 6


def described(draws: Draws, image: int, channels: int) -> dict[str, Any]:
    """Return the random parameters of one view of one image, in order of application, JSON-ready.

    The keys are the probabilities' fields in `augment`. Color operations are null for images without three channels.
    """

    def drawn(values: Tensor | None, neutral: float = 0) -> Any:
        value = neutral if values is None else values[image].item()
        return round(value, _DECIMALS) if isinstance(value, float) else value

    colored = channels == 3
    dropped = drawn(draws.dropped, -1)
    return {
        "crop": [round(edge) for edge in draws.crop[image].tolist()],
        "flip": drawn(draws.flip),
        "vertical_flip": drawn(draws.vertical_flip),
        "rotate": 90 * drawn(draws.turns),
        "brightness": drawn(draws.brightness),
        "saturation": drawn(draws.saturation) if colored else None,
        "hue": drawn(draws.hue) if colored else None,
        "grayscale": drawn(draws.grayscale) if colored else None,
        "contrast": drawn(draws.contrast),
        "blur": drawn(draws.sigma),
        "solarize": bool(drawn(draws.solarized)),
        "channel_drop": None if dropped < 0 else dropped,
    }
