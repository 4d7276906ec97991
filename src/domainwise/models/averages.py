"""Means of weights: over several runs, and between two points of one training."""

from collections.abc import Mapping

import torch
from torch import Tensor

from domainwise.engine.batch_norm import estimated_statistics
from domainwise.engine.restore import TrainedRun
from domainwise.engine.session import fresh_batches, stream_keys


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
    return {
        name: ((1 - alpha) * start[name].double() + alpha * one.double()).to(one.dtype)
        if one.is_floating_point()
        else one
        for name, one in end.items()
    }


def load_average(trained: TrainedRun, tensors: Mapping[str, Tensor]) -> None:
    """Gives averaged weights to the algorithm of a run; BatchNorm that learns gets statistics that fit them."""
    run, data, algorithm = trained.run, trained.environments, trained.algorithm
    algorithm.load_state_dict(dict(tensors))
    rows = [data.split(domain, run.trial, run.held_out)["in"] for domain in run.train_domains]
    batches = fresh_batches(run, data, rows, int(algorithm.hparams["batch_size"]), stream_keys(run))
    algorithm.train()
    with estimated_statistics(algorithm, batches):
        fitting = {name: value.detach().clone() for name, value in algorithm.state_dict().items()}
    algorithm.load_state_dict(fitting)
    algorithm.eval()
