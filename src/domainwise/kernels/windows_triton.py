"""The windows of an image that a 7x7 convolution with stride 2 sees, gathered as channels, and the way back.

Over channels_last memory, a row of an image with C channels is a row of numbers, 2 C for each square of 2x2 pixels. A
window's channels are four squares, of them two rows, of them 2 C numbers; two windows side by side share three squares.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels.custom_op import empty
from domainwise.kernels.stem import window_channels

BLOCK = 32
"""Windows of a row that a program handles."""


@triton.jit
def _windows_kernel(
    x_at, y_at, height, length, rows, columns, SQUARE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    sample, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    pixel_row = 2 * (row - 2) + channel // SQUARE % 2
    number = SQUARE * (column - 2 + channel // (2 * SQUARE)) + channel % SQUARE
    inside = (pixel_row >= 0) & (pixel_row < height) & (number >= 0) & (number < length) & (channel < 8 * SQUARE)
    x = tl.load(x_at + (sample.to(tl.int64) * height + pixel_row) * length + number, mask=inside, other=0.0)
    tl.store(y_at + (tl.program_id(0).to(tl.int64) * columns + column) * CHANNELS + channel, x, mask=column < columns)


@triton.jit
def _windows_backward_kernel(
    dy_at, dx_at, height, length, rows, columns, SQUARE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    sample, pixel_row = tl.program_id(0) // height, tl.program_id(0) % height
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = number < length
    dx = tl.zeros([BLOCK], tl.float32)
    for square in tl.static_range(4):
        column = number // SQUARE + 2 - square
        at = ((sample.to(tl.int64) * rows + pixel_row // 2 + 2) * columns + column) * CHANNELS
        at += (2 * square + pixel_row % 2) * SQUARE + number % SQUARE
        dx += tl.load(dy_at + at, mask=known & (column >= 0) & (column < columns), other=0.0).to(tl.float32)
    tl.store(dx_at + tl.program_id(0).to(tl.int64) * length + number, dx, mask=known)


def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The windows in this dtype, in channels_last."""
    x = x.contiguous(memory_format=torch.channels_last)
    samples, inputs, height, width = x.shape
    rows, columns, channels = (height + 1) // 2 + 3, (width + 1) // 2, window_channels(inputs)
    y = empty(x, channels, rows, columns, dtype)
    _windows_kernel[samples * rows, triton.cdiv(columns, BLOCK)](
        x, y, height, width * inputs, rows, columns, SQUARE=2 * inputs, CHANNELS=channels, BLOCK=BLOCK
    )
    return y


def backward(dy: Tensor, inputs: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """The gradient of an image with these channels, this height and width."""
    dy = dy.contiguous(memory_format=torch.channels_last)
    samples, channels, rows, columns = dy.shape
    dx = empty(dy, inputs, height, width, dtype)
    block = min(1024, triton.next_power_of_2(width * inputs))
    _windows_backward_kernel[samples * height, triton.cdiv(width * inputs, block)](
        dy, dx, height, width * inputs, rows, columns, SQUARE=2 * inputs, CHANNELS=channels, BLOCK=block
    )
    return dx
