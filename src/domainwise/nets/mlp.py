"""Fully connected networks."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def perceptron(widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Linear layers between these widths, with dropout and ReLU after all but the last."""
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(inputs, outputs))
        if i < len(widths) - 2:
            layers += [nn.Dropout(dropout), nn.ReLU()]
    return nn.Sequential(*layers)
