"""A batch of normalised images by one kernel: to take, to turn to numbers and to normalise are many for so little."""

import torch
from torch import Tensor

from domainwise.kernels.group_norm import TRITON


def fits(images: Tensor, mean: Tensor) -> bool:
    """Whether the kernel can do it: images of bytes on a GPU."""
    return TRITON and images.is_cuda and images.dtype == torch.uint8 and mean.dtype == torch.float32


def draw(
    u: Tensor, rows: Tensor, starts: Tensor, sizes: Tensor, images: Tensor, labels: Tensor, mean: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """Images (image / 255 - mean) / std [E, B, C, H, W] and labels [E, B] that uniform numbers u [E, B] mean.

    Domain e's are of the `sizes[e]` rows from `rows[starts[e]]` on.
    """
    from domainwise.kernels import draw_triton

    return draw_triton.draw(u, rows, starts, sizes, images, labels, mean, std)
