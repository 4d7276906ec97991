"""Networks and augmentations compiled by torch, once for each of a few batch sizes.

Compiling one shape takes seconds, and a search draws some fifty batch sizes. So a batch is padded with empty samples to
the next of a few sizes before it enters a compiled network, and their features are thrown away: exact wherever a sample
does not see its batch, since samples that nothing depends on have no gradient. All else in a step keeps its own shape.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.data.augment import Augmenter
from domainwise.kernels import accelerated
from domainwise.nets.modes import is_per_sample
from domainwise.nets.network import Network

SHAPES = 256
"""Variants of one network's code that torch may keep: sizes, with and without gradients, in each precision."""

Forward = Callable[..., Tensor]


@contextmanager
def compiled(
    algorithm: nn.Module, prepare: object = None, backend: str | Callable[..., Any] = "inductor"
) -> Iterator[None]:
    """Within it, the features of every network of the algorithm are computed by compiled code, and augmentation too.

    But for networks that say `compiles = False`, that there is nothing to gain, and augmentation with its own kernels.
    """
    import torch._dynamo

    networks = [module.features for module in algorithm.modules() if isinstance(module, Network)]
    features = [module for module in networks if getattr(module, "compiles", True)]
    limits = {"recompile_limit": SHAPES, "accumulated_recompile_limit": 8 * SHAPES}
    with torch._dynamo.config.patch(limits):
        for module in features:
            forward = partial(_compiled(type(module).forward, backend), module)
            module.forward = padded(forward) if is_per_sample(module) else forward
        augmenter = prepare if isinstance(prepare, Augmenter) and not accelerated("augment", prepare) else None
        if augmenter:
            augment = padded(partial(_compiled(Augmenter.augment, backend), augmenter))
            augmenter.augment = augment  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module in features:
                del module.forward
            if augmenter:
                del augmenter.augment


@cache
def _compiled(forward: Callable[..., Tensor], backend: str | Callable[..., Any]) -> Callable[..., Tensor]:
    """One compiled function for all networks of a kind, so that a second run finds what the first has compiled."""
    return torch.compile(forward, dynamic=False, backend=backend)


def padded(forward: Forward) -> Forward:
    """The same function of the samples of a batch, computed on a batch of one of a few sizes."""

    def on_a_round_number(*batch: Tensor) -> Tensor:
        size = len(batch[0])
        missing = round_up(size) - size
        if not missing:
            return forward(*batch)
        return forward(*(F.pad(x, [0, 0] * (x.ndim - 1) + [0, missing]) for x in batch))[:size]

    return on_a_round_number


def round_up(n: int) -> int:
    """The next power of two, or three quarters of it."""
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power
