"""Networks and augmentations compiled by torch, once for each of a few batch sizes.

Compiling one shape takes seconds, and a search draws some fifty batch sizes. So a batch is padded with empty samples to
the next of a few sizes before it enters a compiled network, and their features are discarded. This is exact if the
features of a sample depend on that sample alone, since padding then has no gradient. Everything else in a step keeps
its shape.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.data.augment import Augmenter
from domainwise.engine.execution.forward import Forward, feature_networks, override
from domainwise.kernels import accelerated
from domainwise.nets.modes import is_per_sample

SHAPES = 256
"""Variants of one network's code that torch may keep: sizes, with and without gradients, in each precision."""

Backend = str | Callable[..., Any]


@contextmanager
def compiled(algorithm: nn.Module, prepare: object = None, backend: Backend = "inductor") -> Iterator[None]:
    """Within it, the features of every network of the algorithm and the augmentation are computed by compiled code.

    Networks with `compiles = False`, which gain nothing, and augmentation with its own kernels are not compiled.
    """
    import torch._dynamo

    limits = {"recompile_limit": SHAPES, "accumulated_recompile_limit": 8 * SHAPES}
    with ExitStack() as stack:
        stack.enter_context(torch._dynamo.config.patch(limits))
        for features in feature_networks(algorithm):
            if getattr(features, "compiles", True):
                forward: Forward = partial(_compiled(type(features).forward, backend), features)
                forward = padded(forward) if is_per_sample(features) else forward
                stack.enter_context(override(features, "forward", forward))
        if isinstance(prepare, Augmenter) and not accelerated("augment", prepare):
            augment = padded(partial(_compiled(Augmenter.augment, backend), prepare))
            stack.enter_context(override(prepare, "augment", augment))
        yield


@cache
def _compiled(forward: Forward, backend: Backend) -> Forward:
    """One compiled function for all networks of a class, so that a second run reuses what the first compiled."""
    return torch.compile(forward, dynamic=False, backend=backend)


def padded(forward: Forward) -> Forward:
    """The same function of a batch's samples, computed on a batch of one of a few sizes."""

    def padded_forward(*batch: Tensor) -> Tensor:
        size = len(batch[0])
        missing = round_up(size) - size
        if not missing:
            return forward(*batch)
        return forward(*(F.pad(x, [0, 0] * (x.ndim - 1) + [0, missing]) for x in batch))[:size]

    return padded_forward


def round_up(n: int) -> int:
    """The next power of two, or three quarters of it."""
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power
