"""ReLU's gradient and its sum over pixels in one pass, as a Triton kernel over channels_last memory.

A program handles every so many pixels, and some channels of them; the programs' sums are added afterwards. Sums are
taken in float32, and in a fixed order, so that results can be repeated.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels.convolution import TILE, pixel_parts


@triton.jit
def _relu_kernel(
    dy_at,
    y_at,
    beside_at,
    dz_at,
    sums_at,
    pixels,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BESIDE: tl.constexpr,
    SUM: tl.constexpr,
):
    channels = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(tl.program_id(0) * ROWS, pixels, tl.num_programs(0) * ROWS):
        pixel = first + tl.arange(0, ROWS)
        offsets = pixel.to(tl.int64)[:, None] * CHANNELS + channels[None, :]
        mask = (pixel < pixels)[:, None]
        dy = tl.load(dy_at + offsets, mask=mask, other=0.0).to(tl.float32)
        if BESIDE:
            dy += tl.load(beside_at + offsets, mask=mask, other=0.0).to(tl.float32)
        dz = tl.where(tl.load(y_at + offsets, mask=mask, other=0.0) <= 0, 0.0, dy)
        tl.store(dz_at + offsets, dz, mask=mask)
        if SUM:
            sums += dz
    if SUM:
        tl.store(sums_at + tl.program_id(0) * CHANNELS + channels, tl.sum(sums, 0))


def backward(dy: Tensor, y: Tensor, summed: bool, beside: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """dy, and what is beside it, where y > 0; and sums of it over parts of the pixels [parts, C], or none of them."""
    dy = dy.contiguous(memory_format=torch.channels_last)
    y = y.contiguous(memory_format=torch.channels_last)
    dz = torch.empty_like(dy, memory_format=torch.channels_last)
    channels, (programs, columns) = y.shape[1], pixel_parts(y)
    sums = y.new_empty(programs if summed else 0, channels, dtype=torch.float32)
    _relu_kernel[programs, channels // columns](
        dy,
        y,
        beside,
        dz,
        sums,
        y.numel() // channels,
        CHANNELS=channels,
        ROWS=TILE // columns,
        COLUMNS=columns,
        BESIDE=beside is not None,
        SUM=summed,
        num_warps=8,
    )
    return dz, sums
