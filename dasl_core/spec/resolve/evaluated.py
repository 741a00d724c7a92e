"""Check that a network can be evaluated on the images of another data set."""

from dasl_core.spec.problems import FieldProblem
from dasl_core.spec.resolve.facts import DatasetFacts
from dasl_core.spec.resolve.pixels import RGB, percentile
from dasl_core.spec.resolved import ResolvedBackbone

# Values of another type that overlap less with the window have other units: 8 bits are 0.06 of 12 bits.
SMALLEST_SHARE = 0.1


def evaluation_problem(
    name: str, evaluated: DatasetFacts, trained: DatasetFacts, backbone: ResolvedBackbone
) -> FieldProblem | None:
    """Describe why images do not fit the channels or the window of the network; None if they do.

    Args:
        name: `evaluate.dataset` of the spec.
        evaluated: facts about that data set.
        trained: facts about the training data set.
        backbone: backbone resolved for the training data set.
    """
    channels, bands = backbone.in_channels, evaluated.bands
    # Decoders turn gray into color and color into luminance. Opacity and CMYK count as color.
    is_converted = channels in (1, RGB) and bands in (1, RGB)
    if bands not in (channels, trained.bands) and not is_converted:
        return FieldProblem(
            "evaluate.dataset",
            f"has images of {bands} bands, and backbone.in_channels is {channels}",
            name,
            f"images of {channels} bands",
        )
    if evaluated.dtype == trained.dtype or evaluated.quantiles is None:
        return None
    low, high = backbone.window
    least, most = (percentile(evaluated.quantiles, each) for each in (0.1, 99.9))
    common = min(most, high) - max(least, low)
    if common >= SMALLEST_SHARE * max(high - low, most - least):
        return None
    return FieldProblem(
        "evaluate.dataset",
        f"has {evaluated.dtype} values from {least:g} to {most:g}, and backbone.window, of the {trained.dtype} "
        f"images to train on, goes from {low:g} to {high:g}",
        name,
        "images in the units of those to train on",
    )
