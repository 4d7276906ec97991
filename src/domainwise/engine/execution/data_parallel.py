"""One model on several GPUs: the network's work is spread over ranks, the algorithm above it is left as it is.

Every rank holds the whole batch and all weights. Of the inputs of a pass through the features each rank computes a
share, and a sum over ranks of shares in their places gives everybody all features; what follows (classifier, loss,
penalties, discriminators) every rank computes for itself from features of all samples, as in one process. In return

    gradient of the weights  = sum over ranks of the gradients by their shares
    gradient of the inputs   = sum over ranks of the gradients of their shares, zero elsewhere: the same delta for all

so methods whose loss is no average over samples need nothing of their own. A share is a range of the flattened batch
[E * B], not B / ranks of every domain: since features of a sample depend on that sample alone (networks of which this
is not true are refused), who computes which makes no difference.

Both ways are one pair of linear maps, each the other's transpose, so gradients of gradients are right too:

    Shared   one value for all ranks -> a copy on each,         backward: Summed
    Summed   a summand on each rank  -> their sum for all,      backward: Shared
"""

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call

from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.engine.execution.ranks import Crew, listening
from domainwise.engine.session import Session
from domainwise.nets.modes import declares_per_sample, has_dropout, is_per_sample
from domainwise.nets.network import Network

log = logging.getLogger(__name__)


class Shared(Function):
    """Values that are the same on all ranks, for each rank's own use: their gradients are summed over ranks."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004 (nothing to keep)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004
        return summed(*gradients)


class Summed(Function):
    """Sums over ranks, of all tensors in one message."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        together = torch.cat([tensor.flatten() for tensor in tensors])
        with listening():
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


class Spread:
    """The forward pass of a feature network, by all ranks together."""

    def __init__(self, features: nn.Module, crew: Crew) -> None:
        self.own, self.crew = _Alone(features), crew

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) < self.crew.size:  # not a sample for everybody: all compute all
            return self.own(x)
        start, end = (len(x) * number // self.crew.size for number in (self.crew.rank, self.crew.rank + 1))
        weights: dict[str, Tensor] = {name: p for name, p in self.own.named_parameters() if p.requires_grad}
        if weights:
            weights = dict(zip(weights, shared(*weights.values()), strict=True))
        (inputs,) = shared(x) if x.requires_grad else (x,)
        share: Tensor = functional_call(self.own, weights, (inputs[start:end],))
        empty = share.new_zeros(1, *share.shape[1:])
        before, after = empty.expand(start, *share.shape[1:]), empty.expand(len(x) - end, *share.shape[1:])
        (features,) = summed(torch.cat([before, share, after]))
        return features


class _Alone(nn.Module):
    """The features as their class computes them."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        return type(self.features).forward(self.features, x)


def spread(algorithm: Algorithm, crew: Crew, name: str) -> None:
    """Lets all ranks work on every network of an algorithm, if that leaves the results as they are."""
    networks = [module for module in algorithm.modules() if isinstance(module, Network)]
    if not networks:
        raise UserError(f"network {name} cannot be trained by several processes: wrap it as Network(features, classes)")
    for network in networks:
        check(network.features, name)
    for network in networks:
        network.features.forward = Spread(network.features, crew)


def spread_session(session: Session, crew: Crew) -> None:
    """Makes a training the work of all ranks, on GPUs with steps that are not captured."""
    if crew.size == 1:
        return
    spread(session.algorithm, crew, session.run.network)
    if session.captured is not None:
        log.warning("%s: %d GPUs share its steps, so they are not captured", session.run, crew.size)
        session.captured = None


def check(features: nn.Module, name: str) -> None:
    """Refuses networks whose features of a sample depend on other samples, or on random numbers."""
    if not is_per_sample(features):
        if declares_per_sample(features):
            why = "its BatchNorm learns from whole batches: use one whose BatchNorm is frozen (resnet18, resnet50)"
        else:
            why = "it does not say `per_sample = True`: that features of a sample depend on that sample alone"
        raise UserError(f"network {name} cannot be trained by several processes: {why}")
    if has_dropout(features):
        raise UserError(
            f"network {name} cannot be trained by several processes: there is dropout inside its features; "
            "use --hparam dropout=, which comes after them"
        )
