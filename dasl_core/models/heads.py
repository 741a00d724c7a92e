"""Projection heads: from features to the embeddings that a loss sees."""

from torch import nn


def projection_head(in_features: int, hidden: int, out: int) -> nn.Sequential:
    """SimCLR's head: Linear, BatchNorm, ReLU, Linear (Chen et al. 2020, section 4.2).

    The hidden layer has no bias, since the normalisation takes it away.
    """
    return nn.Sequential(
        nn.Linear(in_features, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, out),
    )
