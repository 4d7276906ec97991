"""Many tensors as one: a flat copy of a network's parameters, for operations that are one kernel over all of them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

ALIGNED = 64
"""Numbers: where a parameter may begin, so that those who read it may read several at once."""


class FlatLayout:
    """Where each of some parameters lies in one tensor: each in the order in which it lies in memory."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.orders = [_memory_order(parameter) for parameter in parameters]
        self.gaps = [parameters[0].new_zeros(-parameter.numel() % ALIGNED) for parameter in parameters]

    def joined(self, tensors: Iterable[Tensor]) -> Tensor:
        """Tensors like the parameters, as one."""
        triples = zip(tensors, self.orders, self.gaps, strict=True)
        return torch.cat(
            [piece for tensor, order, gap in triples for piece in (tensor.permute(order).reshape(-1), gap)]
        )

    def views(self, flat: Tensor) -> list[Tensor]:
        """One tensor as tensors like the parameters, also in memory."""
        pieces = zip(self.parameters, self.gaps, strict=True)
        chunks = flat.split([size for parameter, gap in pieces for size in (parameter.numel(), gap.numel())])
        views = []
        for chunk, parameter, order in zip(chunks[::2], self.parameters, self.orders, strict=True):
            inverse = sorted(range(len(order)), key=order.__getitem__)
            views.append(chunk.view(parameter.permute(order).shape).permute(inverse))
        return views


def _memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Its dimensions as they lie in memory."""
    last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return (0, 2, 3, 1) if last else tuple(range(tensor.ndim))
