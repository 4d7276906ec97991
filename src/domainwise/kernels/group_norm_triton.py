"""Bias, ReLU and GroupNorm as Triton kernels, forward and backward, over channels_last memory.

With r = relu(x + c), m and s the mean and 1 / deviation of r in a group of n numbers, z = (r - m) s and y = w z + b:

    dx = [x + c > 0] s (w dy - A - z B),    A = sum(w dy) / n,    B = sum(w dy z) / n    over the group
    dc = sum(dx),    db = sum(dy),    dw = sum(dy z)                                     over samples and pixels

Pooled, only the mean of y over the pixels is written, and dy is the same for all pixels of a sample.

A program handles one sample and BLOCK_CHANNELS channels: it reads them twice, once to sum and once to write, the second
time from the cache. Sums are taken in float32, and in a fixed order, so that results can be repeated.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels.group_norm import BLOCK_CHANNELS
from domainwise.kernels.sums_triton import by_group, sum_rows

BLOCK_PIXELS = 64
WARPS = 4


@triton.jit
def _place(CHANNELS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    """A program's sample and channels; neighbours share a sample, whose memory they read side by side."""
    BLOCKS: tl.constexpr = CHANNELS // BLOCK_CHANNELS
    channels = tl.program_id(0) % BLOCKS * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    return tl.program_id(0) // BLOCKS, channels


@triton.jit
def _tile(sample, channels, first, pixels, CHANNELS: tl.constexpr, BLOCK_PIXELS: tl.constexpr):
    """Offsets and mask of some pixels of a sample, [BLOCK_PIXELS, BLOCK_CHANNELS]."""
    pixel = first + tl.arange(0, BLOCK_PIXELS)
    offsets = (sample.to(tl.int64) * pixels + pixel)[:, None] * CHANNELS + channels[None, :]
    return offsets, (pixel < pixels)[:, None]


@triton.jit
def _rectified(x_at, offsets, mask, shift):
    """relu(x + shift), zero outside the mask; not by a maximum, which would hide NaN."""
    x = tl.load(x_at + offsets, mask=mask, other=0.0).to(tl.float32) + shift[None, :]
    return tl.where((x < 0) | (mask == 0), 0.0, x)


@triton.jit
def _forward_kernel(
    x_at,
    shift_at,
    weight_at,
    bias_at,
    y_at,
    mean_at,
    scale_at,
    pixels,
    eps,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    POOLED: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
):
    sample, channels = _place(CHANNELS, BLOCK_CHANNELS)
    shift = tl.load(shift_at + channels).to(tl.float32)
    weight = tl.load(weight_at + channels).to(tl.float32)
    bias = tl.load(bias_at + channels).to(tl.float32)
    every_sum = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    every_square = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    for first in range(0, pixels, BLOCK_PIXELS):
        offsets, mask = _tile(sample, channels, first, pixels, CHANNELS, BLOCK_PIXELS)
        r = _rectified(x_at, offsets, mask, shift)
        every_sum += r
        every_square += r * r
    sums = tl.sum(every_sum, 0)
    n = pixels * PER_GROUP
    mean = by_group(sums, BLOCK_CHANNELS, PER_GROUP) / n
    variance = by_group(tl.sum(every_square, 0), BLOCK_CHANNELS, PER_GROUP) / n - mean * mean
    scale = 1 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps)
    group = sample * (CHANNELS // PER_GROUP) + channels // PER_GROUP
    tl.store(mean_at + group, mean, mask=channels % PER_GROUP == 0)
    tl.store(scale_at + group, scale, mask=channels % PER_GROUP == 0)
    slope = scale * weight
    level = bias - mean * slope
    if POOLED:
        tl.store(y_at + sample * CHANNELS + channels, sums / pixels * slope + level)
    else:
        for first in range(0, pixels, BLOCK_PIXELS):
            offsets, mask = _tile(sample, channels, first, pixels, CHANNELS, BLOCK_PIXELS)
            r = _rectified(x_at, offsets, mask, shift)
            tl.store(y_at + offsets, r * slope[None, :] + level[None, :], mask=mask)


@triton.jit
def _slope_of_y(dy_at, offsets, mask, sample, channels, pixels, CHANNELS: tl.constexpr, POOLED: tl.constexpr):
    if POOLED:
        dy = tl.load(dy_at + sample * CHANNELS + channels).to(tl.float32) / pixels
        return tl.where(mask, dy[None, :], 0.0)
    else:  # noqa: RET505 (a branch of the compiler's)
        return tl.load(dy_at + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _backward_kernel(
    dy_at,
    x_at,
    shift_at,
    weight_at,
    mean_at,
    scale_at,
    dx_at,
    sums_at,
    pixels,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    POOLED: tl.constexpr,
    WANTED: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
):
    sample, channels = _place(CHANNELS, BLOCK_CHANNELS)
    group = sample * (CHANNELS // PER_GROUP) + channels // PER_GROUP
    shift = tl.load(shift_at + channels).to(tl.float32)
    mean = tl.load(mean_at + group)
    scale = tl.load(scale_at + group)
    weight = tl.load(weight_at + channels).to(tl.float32)
    every_sum = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    every_product = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    for first in range(0, pixels, BLOCK_PIXELS):
        offsets, mask = _tile(sample, channels, first, pixels, CHANNELS, BLOCK_PIXELS)
        z = (_rectified(x_at, offsets, mask, shift) - mean[None, :]) * scale[None, :]
        dy = _slope_of_y(dy_at, offsets, mask, sample, channels, pixels, CHANNELS, POOLED)
        every_sum += dy
        every_product += dy * z
    sums = tl.sum(every_sum, 0)
    products = tl.sum(every_product, 0)
    n = pixels * PER_GROUP
    a = by_group(weight * sums, BLOCK_CHANNELS, PER_GROUP) / n
    b = by_group(weight * products, BLOCK_CHANNELS, PER_GROUP) / n
    every_slope = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    for first in range(0, pixels, BLOCK_PIXELS):
        offsets, mask = _tile(sample, channels, first, pixels, CHANNELS, BLOCK_PIXELS)
        r = _rectified(x_at, offsets, mask, shift)
        z = (r - mean[None, :]) * scale[None, :]
        dy = _slope_of_y(dy_at, offsets, mask, sample, channels, pixels, CHANNELS, POOLED)
        dr = scale[None, :] * (weight[None, :] * dy - a[None, :] - z * b[None, :])
        dx = tl.where((r > 0) & mask, dr, 0.0)
        every_slope += dx
        tl.store(dx_at + offsets, dx, mask=mask)
    if WANTED:
        at = sums_at + sample * 3 * CHANNELS + channels
        tl.store(at, tl.sum(every_slope, 0))
        tl.store(at + CHANNELS, products)
        tl.store(at + 2 * CHANNELS, sums)


def forward(
    x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, pooled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """norm(relu(x + shift)), or its mean over pixels [N, C]; and the means and 1 / deviations [N, G] of relu(x)."""
    x = x.contiguous(memory_format=torch.channels_last)
    samples, channels, height, width = x.shape
    y = x.new_empty(samples, channels, dtype=torch.float32) if pooled else torch.empty_like(x)
    mean = x.new_empty(samples, groups, dtype=torch.float32)
    scale = torch.empty_like(mean)
    _forward_kernel[samples * (channels // BLOCK_CHANNELS),](
        x,
        shift,
        weight,
        bias,
        y,
        mean,
        scale,
        height * width,
        eps,
        CHANNELS=channels,
        PER_GROUP=channels // groups,
        POOLED=pooled,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        BLOCK_PIXELS=BLOCK_PIXELS,
        num_warps=WARPS,
    )
    return y, mean, scale


def backward(
    dy: Tensor, x: Tensor, shift: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, pooled: bool, wanted: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of shift, weight and bias in one tensor [3, C], if they are wanted."""
    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.contiguous() if pooled else dy.contiguous(memory_format=torch.channels_last)
    samples, channels, height, width = x.shape
    dx = torch.empty_like(x)
    sums = x.new_empty(samples if wanted else 0, 3, channels, dtype=torch.float32)
    _backward_kernel[samples * (channels // BLOCK_CHANNELS),](
        dy,
        x,
        shift,
        weight,
        mean,
        scale,
        dx,
        sums,
        height * width,
        CHANNELS=channels,
        PER_GROUP=channels // mean.shape[1],
        POOLED=pooled,
        WANTED=wanted,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        BLOCK_PIXELS=BLOCK_PIXELS,
        num_warps=WARPS,
    )
    return dx, sum_rows(sums) if wanted else sums.new_empty(0)
