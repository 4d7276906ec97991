"""The statistics that BatchNorm needs for weights it was not trained with: estimated anew from training batches.

Averaged weights have other activations than any weights of the training, so that running statistics of the training do
not fit them (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407). For each layer,

    mean = mean_b m_b,    variance = mean_b v_b    over the batches b, with m_b and v_b (unbiased) of the layer's inputs
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from domainwise.algorithms.base import Algorithm

BATCHES = 20
"""Training batches that statistics are estimated from."""


def learning_norms(algorithm: Algorithm) -> list[_BatchNorm]:
    """The BatchNorm layers, of an algorithm in training mode, that learn statistics; frozen ones do not."""
    norms = [module for module in algorithm.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in norms if norm.training and norm.track_running_stats]


@contextmanager
def estimated_statistics(algorithm: Algorithm, batches: Iterable[Tensor]) -> Iterator[None]:
    """Within it, BatchNorm has the statistics of these batches [E, B, ...] under the present weights.

    Dropout is off while they are estimated, so that no random numbers are drawn. All other buffers stay as they are. A
    layer that the batches do not pass keeps its statistics.
    """
    norms = learning_norms(algorithm)
    if not norms:
        yield
        return
    buffers = [(buffer, buffer.clone()) for buffer in algorithm.buffers()]
    own = {id(buffer) for norm in norms for buffer in norm.buffers()}
    try:
        _estimate(algorithm, norms, batches)
        _restore((buffer, value) for buffer, value in buffers if id(buffer) not in own)
        yield
    finally:
        _restore(buffers)


@torch.no_grad()
def _estimate(algorithm: Algorithm, norms: list[_BatchNorm], batches: Iterable[Tensor]) -> None:
    before = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
    momenta = [norm.momentum for norm in norms]
    passed: set[int] = set()
    hooks = [norm.register_forward_hook(lambda module, *_: passed.add(id(module))) for norm in norms]
    algorithm.eval()
    try:
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over batches
        for x in batches:
            algorithm.logits(x)
    finally:
        for norm, momentum, hook, values in zip(norms, momenta, hooks, before, strict=True):
            hook.remove()
            norm.momentum = momentum
            if id(norm) not in passed:
                _restore((buffer, values[name]) for name, buffer in norm.named_buffers())
        algorithm.train()


@torch.no_grad()
def _restore(values: Iterable[tuple[Tensor, Tensor]]) -> None:
    for buffer, value in values:
        buffer.copy_(value)
