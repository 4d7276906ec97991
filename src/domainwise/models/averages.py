"""Means of weights: over several runs, and between two points of one training."""

from collections.abc import Mapping

import torch
from torch import Tensor

from domainwise.engine.restore import TrainedRun


class WeightSum:
    """A sum of weights in float64; tensors that are not numbers with a fraction are those of the first."""

    def __init__(self) -> None:
        self.count = 0
        self.sums: dict[str, Tensor] = {}
        self.kinds: dict[str, torch.dtype] = {}

    def plus(self, tensors: Mapping[str, Tensor]) -> "WeightSum":
        """With one more; this one stays as it is."""
        result = WeightSum()
        result.count, result.kinds = self.count + 1, self.kinds or {name: one.dtype for name, one in tensors.items()}
        for name, one in tensors.items():
            known = self.sums.get(name)
            value = one.double() if one.is_floating_point() else one
            result.sums[name] = value if known is None else known + value if one.is_floating_point() else known
        return result

    def mean(self) -> dict[str, Tensor]:
        return {
            name: (one / self.count).to(self.kinds[name]) if self.kinds[name].is_floating_point else one
            for name, one in self.sums.items()
        }


def between(start: Mapping[str, Tensor], end: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """(1 - alpha) start + alpha end, in float64; tensors without a fraction are those of the end."""
    if alpha in (0, 1):
        return dict(end if alpha else start)
    return {
        name: ((1 - alpha) * start[name].double() + alpha * one.double()).to(one.dtype)
        if one.is_floating_point()
        else one
        for name, one in end.items()
    }


def load_average(trained: TrainedRun, tensors: Mapping[str, Tensor]) -> None:
    """Loads averaged weights into the algorithm of a run."""
    trained.algorithm.load_state_dict(dict(tensors))
