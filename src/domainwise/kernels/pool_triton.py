"""Bias, ReLU and 3x3 max-pooling with stride 2 as Triton kernels, over channels_last memory.

The bias does not change which pixel of a window is the largest, so y = relu(max(x) + bias). The forward pass notes
which of the nine it was, or that ReLU left nothing of it. Of the input pixels 2p and 2p + 1, in both directions, only
the windows p and p + 1 know anything: the backward pass gathers from these.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels.custom_op import empty
from domainwise.kernels.stem import BLOCK, pool_parts

NOTHING = tl.constexpr(9)
"""In place of the winner's number, where ReLU made the maximum zero."""


@triton.jit
def _pool_kernel(
    x_at, bias_at, y_at, winner_at, height, width, rows, columns, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    sample, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, CHANNELS)
    best = tl.full([BLOCK, CHANNELS], float("-inf"), tl.float32)
    winner = tl.zeros([BLOCK, CHANNELS], tl.int32)
    for number in tl.static_range(9):
        i, j = 2 * row - 1 + number // 3, 2 * column - 1 + number % 3
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        pixel = (sample.to(tl.int64) * height + i) * width + j
        x = tl.load(x_at + pixel[:, None] * CHANNELS + channel[None, :], mask=inside[:, None], other=float("-inf"))
        x = x.to(tl.float32)
        better = (x > best) | (x != x)  # NaN wins
        best = tl.where(better, x, best)
        winner = tl.where(better, number, winner)
    y = best + tl.load(bias_at + channel).to(tl.float32)[None, :]
    offsets = ((sample.to(tl.int64) * rows + row) * columns + column)[:, None] * CHANNELS + channel[None, :]
    mask = (column < columns)[:, None]
    tl.store(y_at + offsets, tl.where(y <= 0, 0.0, y), mask=mask)
    tl.store(winner_at + offsets, tl.where(y <= 0, NOTHING, winner).to(tl.uint8), mask=mask)


@triton.jit
def _window(dy_at, winner_at, sample, row, column, rows, columns, channel, CHANNELS: tl.constexpr):
    """Gradients and winners of one row's windows; outside of the image there are none."""
    inside = ((row < rows) & (column < columns))[:, None]
    offsets = ((sample.to(tl.int64) * rows + row) * columns + column)[:, None] * CHANNELS + channel[None, :]
    winner = tl.load(winner_at + offsets, mask=inside, other=NOTHING)
    return tl.load(dy_at + offsets, mask=inside, other=0.0).to(tl.float32), winner.to(tl.int32)


@triton.jit
def _pool_backward_kernel(
    dy_at,
    winner_at,
    dx_at,
    sums_at,
    work,
    height,
    width,
    rows,
    columns,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM: tl.constexpr,
):
    channel = tl.arange(0, CHANNELS)
    sums = tl.zeros([BLOCK, CHANNELS], tl.float32)
    blocks = tl.cdiv(columns, BLOCK)
    for item in range(tl.program_id(0), work, tl.num_programs(0)):
        sample, row = item // blocks // rows, item // blocks % rows
        column = item % blocks * BLOCK + tl.arange(0, BLOCK)
        here, winner = _window(dy_at, winner_at, sample, row, column, rows, columns, channel, CHANNELS)
        right, winner_right = _window(dy_at, winner_at, sample, row, column + 1, rows, columns, channel, CHANNELS)
        below, winner_below = _window(dy_at, winner_at, sample, row + 1, column, rows, columns, channel, CHANNELS)
        far, winner_far = _window(dy_at, winner_at, sample, row + 1, column + 1, rows, columns, channel, CHANNELS)
        if SUM:
            sums += tl.where(winner == NOTHING, 0.0, here)
        corner = tl.where(winner == 4, here, 0.0)
        beside = tl.where(winner == 5, here, 0.0) + tl.where(winner_right == 3, right, 0.0)
        under = tl.where(winner == 7, here, 0.0) + tl.where(winner_below == 1, below, 0.0)
        across = tl.where(winner == 8, here, 0.0) + tl.where(winner_right == 6, right, 0.0)
        across += tl.where(winner_below == 2, below, 0.0) + tl.where(winner_far == 0, far, 0.0)
        pixel = (sample.to(tl.int64) * height + 2 * row) * width + 2 * column
        at = dx_at + pixel[:, None] * CHANNELS + channel[None, :]
        left, odd = (2 * column < width)[:, None], (2 * column + 1 < width)[:, None]
        tl.store(at, corner, mask=left)
        tl.store(at + CHANNELS, beside, mask=odd)
        low = 2 * row + 1 < height
        tl.store(at + width * CHANNELS, under, mask=left & low)
        tl.store(at + (width + 1) * CHANNELS, across, mask=odd & low)
    if SUM:
        tl.store(sums_at + tl.program_id(0) * CHANNELS + channel, tl.sum(sums, 0))


def forward(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """max_pool(relu(x + bias)), and each window's winner 0..8, or 9 where the maximum is zero."""
    x = x.contiguous(memory_format=torch.channels_last)
    samples, channels, height, width = x.shape
    rows, columns = (height + 1) // 2, (width + 1) // 2
    y = empty(x, channels, rows, columns)
    winner = torch.empty_like(y, dtype=torch.uint8)
    _pool_kernel[samples * rows, triton.cdiv(columns, BLOCK)](
        x, bias, y, winner, height, width, rows, columns, CHANNELS=channels, BLOCK=BLOCK
    )
    return y, winner


def backward(dy: Tensor, winner: Tensor, height: int, width: int, summed: bool) -> tuple[Tensor, Tensor]:
    """The gradient of x, and sums of the bias's gradient over parts of the windows [parts, C], or none of them."""
    dy = dy.contiguous(memory_format=torch.channels_last)
    samples, channels, rows, columns = dy.shape
    dx = empty(dy, channels, height, width)
    programs, work = pool_parts(dy), samples * rows * triton.cdiv(columns, BLOCK)
    sums = dy.new_empty(programs if summed else 0, channels, dtype=torch.float32)
    _pool_backward_kernel[programs,](
        dy,
        winner,
        dx,
        sums,
        work,
        height,
        width,
        rows,
        columns,
        CHANNELS=channels,
        BLOCK=BLOCK,
        SUM=summed,
        num_warps=2,
    )
    return dx, sums
