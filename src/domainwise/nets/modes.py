"""Properties of a network's forward pass, and forward passes without side effects."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def has_dropout(network: nn.Module) -> bool:
    """Whether its forward pass in training mode draws random numbers."""
    return any(isinstance(module, _DropoutNd) and module.p for module in network.modules())


def declares_per_sample(features: nn.Module) -> bool:
    """Whether a network declares that the features of a sample depend on it alone: `per_sample = True`."""
    if hasattr(features, "samples_apart"):
        warnings.warn("samples_apart is now called per_sample", DeprecationWarning, stacklevel=2)
        return bool(features.samples_apart)
    return bool(getattr(features, "per_sample", False))


def is_per_sample(features: nn.Module) -> bool:
    """Whether the features of a sample depend on it alone: the network declares it, and no BatchNorm trains."""
    return declares_per_sample(features) and not has_live_batch_norm(features)


def has_live_batch_norm(network: nn.Module) -> bool:
    """Whether a BatchNorm of it is in training mode and normalises by the batch; a frozen one never does."""
    return any(isinstance(module, _BatchNorm) and module.training for module in network.modules())


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
def repeatable(network: nn.Module) -> Iterator[None]:
    """Within it, forward passes leave BatchNorm's running statistics as they are and draw no random numbers."""
    dropouts = [m for m in network.modules() if isinstance(m, _DropoutNd) and m.training]
    for dropout in dropouts:
        dropout.training = False
    try:
        with frozen_running_stats(network):
            yield
    finally:
        for dropout in dropouts:
            dropout.training = True


@contextmanager
def no_side_effects(network: nn.Module) -> Iterator[None]:
    """Within it, forward passes are repeatable and weights are constants: for gradients of the input."""
    weights = [p for p in network.parameters() if p.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with repeatable(network):
            yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Within it, the network is in eval mode."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)
