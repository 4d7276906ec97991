"""A batch of normalised images by one kernel: to take, to turn to numbers and to normalise are many for so little."""

from typing import Any

import torch
from torch import Tensor

from domainwise.kernels.registry import accelerates, on_gpu


def _applies(environments: Any, *_: Tensor) -> bool:
    bytes_on_gpu = on_gpu(environments.images) and environments.images.dtype == torch.uint8
    return bytes_on_gpu and environments.mean.dtype == torch.float32


@accelerates("draw_batch", when=_applies)
def draw_batch(environments: Any, rows: Tensor, starts: Tensor, sizes: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Images (image / 255 - mean) / std [E, B, C, H, W] and labels [E, B] that uniform numbers u [E, B] choose.

    Domain e's are of the `sizes[e]` rows from `rows[starts[e]]` on.
    """
    from domainwise.kernels import draw_triton

    data = environments
    return draw_triton.draw(u, rows, starts, sizes, data.images, data.labels, data.mean, data.std)
