"""One model on several GPUs: the network's work is divided among ranks, the algorithm stays as it is.

Every rank holds the whole batch and all weights. In a pass through the features each rank computes a part of the batch,
and an all-reduce (sum) of the zero-padded parts gives every rank all features. Each rank computes the rest (classifier,
loss, penalties, discriminators) from the features of all samples, as one process would. In the backward pass,

    gradient of the weights  = sum over ranks of the gradients by their parts
    gradient of the inputs   = sum over ranks of the gradients of their parts, zero elsewhere: the same delta for all

so methods whose loss is not an average over samples need no code for ranks. A part is a range of the flattened batch
[E * B], not B / ranks of every domain: the features of a sample depend on that sample alone (other networks are
refused), so it does not matter which rank computes which sample.

Forward and backward are one pair of linear maps, each the other's transpose, so second derivatives are right too:

    Shared   one value for all ranks -> a copy on each,         backward: Summed
    Summed   a summand on each rank  -> their sum for all,      backward: Shared
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call

from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.engine.execution.forward import feature_networks, override
from domainwise.engine.execution.ranks import Ranks, detect_rank_failure
from domainwise.nets.modes import declares_per_sample, has_dropout, is_per_sample


class Shared(Function):
    """Values that are the same on all ranks, used by each; their gradients are summed over ranks."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004 (nothing to save)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004
        return summed(*gradients)


class Summed(Function):
    """Sums over ranks, all tensors in one message."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        together = torch.cat([tensor.flatten() for tensor in tensors])
        with detect_rank_failure():
            dist.all_reduce(together)
        parts = together.split([tensor.numel() for tensor in tensors])
        return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004
        return shared(*gradients)


def shared(*tensors: Tensor) -> tuple[Tensor, ...]:
    return Shared.apply(*tensors)  # type: ignore[no-untyped-call]


def summed(*tensors: Tensor) -> tuple[Tensor, ...]:
    return Summed.apply(*tensors)  # type: ignore[no-untyped-call]


class DividedForward:
    """The forward pass of a feature network, divided among all ranks."""

    def __init__(self, features: nn.Module, ranks: Ranks) -> None:
        self.original, self.ranks = _ClassForward(features), ranks

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) < self.ranks.size:  # fewer samples than ranks: every rank computes all of them
            return self.original(x)
        start, end = (len(x) * number // self.ranks.size for number in (self.ranks.rank, self.ranks.rank + 1))
        weights: dict[str, Tensor] = {name: p for name, p in self.original.named_parameters() if p.requires_grad}
        if weights:
            weights = dict(zip(weights, shared(*weights.values()), strict=True))
        (inputs,) = shared(x) if x.requires_grad else (x,)
        part: Tensor = functional_call(self.original, weights, (inputs[start:end],))
        empty = part.new_zeros(1, *part.shape[1:])
        before, after = empty.expand(start, *part.shape[1:]), empty.expand(len(x) - end, *part.shape[1:])
        (features,) = summed(torch.cat([before, part, after]))
        return features


class _ClassForward(nn.Module):
    """Features as their class computes them, whatever overrides their `forward`."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        return type(self.features).forward(self.features, x)


@contextmanager
def data_parallel(algorithm: Algorithm, ranks: Ranks) -> Iterator[None]:
    """Within it, the forward pass of every network of the algorithm is divided among all ranks."""
    with ExitStack() as stack:
        for features in feature_networks(algorithm):
            stack.enter_context(override(features, "forward", DividedForward(features, ranks)))
        yield


def check_data_parallel(algorithm: Algorithm, name: str) -> None:
    """Raises UserError unless dividing a batch among ranks leaves the results of the network `name` as they are."""
    networks = feature_networks(algorithm)
    if not networks:
        raise UserError(f"network {name} cannot be trained by several processes: wrap it as Network(features, classes)")
    for features in networks:
        check_features(features, name)


def check_features(features: nn.Module, name: str) -> None:
    """Raises UserError if the features of a sample depend on other samples, or on random numbers."""
    if not is_per_sample(features):
        if declares_per_sample(features):
            why = "its BatchNorm learns from whole batches: use one whose BatchNorm is frozen (resnet18, resnet50)"
        else:
            why = "it does not say `per_sample = True`: that features of a sample depend on that sample alone"
        raise UserError(f"network {name} cannot be trained by several processes: {why}")
    if has_dropout(features):
        raise UserError(
            f"network {name} cannot be trained by several processes: there is dropout inside its features; "
            "use the hyper-parameter dropout, which comes after them"
        )
