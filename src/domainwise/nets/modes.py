"""What a network's passes depend on, and passes that leave no trace in it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def has_dropout(network: nn.Module) -> bool:
    """Whether there are random numbers in its passes, while it trains."""
    return any(isinstance(module, _DropoutNd) and module.p for module in network.modules())


def declares_per_sample(features: nn.Module) -> bool:
    """Whether a network says that its features of a sample depend on that sample alone: `per_sample = True`."""
    if hasattr(features, "samples_apart"):
        warnings.warn("samples_apart is now called per_sample", DeprecationWarning, stacklevel=2)
        return bool(features.samples_apart)
    return bool(getattr(features, "per_sample", False))


def is_per_sample(features: nn.Module) -> bool:
    """Whether features of a sample depend on that sample alone: the network says so, and no BatchNorm learns."""
    learning = any(isinstance(module, _BatchNorm) and module.training for module in features.modules())
    return declares_per_sample(features) and not learning


@contextmanager
def frozen_running_stats(network: nn.Module) -> Iterator[None]:
    """Within it, BatchNorm normalises by the batch, but its running statistics stay as they are."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


@contextmanager
def no_side_effects(network: nn.Module) -> Iterator[None]:
    """Within it, passes are for gradients of the input: they change nothing in the network, and draw no random numbers.

    Weights are constants, BatchNorm's running statistics stay as they are, and dropout is off.
    """
    dropouts = [m for m in network.modules() if isinstance(m, _DropoutNd) and m.training]
    weights = [p for p in network.parameters() if p.requires_grad]
    for dropout in dropouts:
        dropout.training = False
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with frozen_running_stats(network):
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
