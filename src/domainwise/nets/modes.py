"""Passes through a network that leave no trace in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def has_dropout(network: nn.Module) -> bool:
    """Whether there are random numbers in its passes, while it trains."""
    return any(isinstance(module, _DropoutNd) and module.p for module in network.modules())


@contextmanager
def statistics_kept(network: nn.Module) -> Iterator[None]:
    """Within it, BatchNorm uses the batch but does not learn from it."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Within it, weights are constants, BatchNorm does not learn, and dropout is off and draws no random numbers."""
    dropouts = [m for m in network.modules() if isinstance(m, _DropoutNd) and m.training]
    weights = [p for p in network.parameters() if p.requires_grad]
    for dropout in dropouts:
        dropout.training = False
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with statistics_kept(network):
            yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)
        for dropout in dropouts:
            dropout.training = True


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Within it, the network is in eval mode."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)
