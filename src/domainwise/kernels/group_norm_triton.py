"""ReLU and GroupNorm as Triton kernels, forward and backward, over channels_last memory.

With r = relu(x), m and s the mean and 1 / deviation of r in a group of n numbers, z = (r - m) s and y = w z + b:

    dx = [x > 0] s (w dy - A - z B),    A = sum(w dy) / n,    B = sum(w dy z) / n    over the group
    db = sum(dy),    dw = sum(dy z)                                                  over samples and pixels

A program handles one sample and BLOCK_CHANNELS channels: it reads them twice, once to sum and once to write, the second
time from the cache. Sums are taken in float32, and in a fixed order, so that results can be repeated.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels.group_norm import BLOCK_CHANNELS

BLOCK_PIXELS = 64


@triton.jit
def _tile(sample, channels, first, pixels, CHANNELS: tl.constexpr, BLOCK_PIXELS: tl.constexpr):
    """Offsets and mask of some pixels of a sample, [BLOCK_PIXELS, BLOCK_CHANNELS]."""
    pixel = first + tl.arange(0, BLOCK_PIXELS)
    offsets = (sample.to(tl.int64) * pixels + pixel)[:, None] * CHANNELS + channels[None, :]
    return offsets, (pixel < pixels)[:, None]


@triton.jit
def _by_group(values, BLOCK_CHANNELS: tl.constexpr, PER_GROUP: tl.constexpr):
    """Each channel's value replaced by the sum over its group."""
    sums = tl.sum(tl.reshape(values, [BLOCK_CHANNELS // PER_GROUP, PER_GROUP]), 1)
    spread = tl.broadcast_to(sums[:, None], [BLOCK_CHANNELS // PER_GROUP, PER_GROUP])
    return tl.reshape(spread, [BLOCK_CHANNELS])


@triton.jit
def _forward_kernel(
    x_at,
    weight_at,
    bias_at,
    y_at,
    mean_at,
    scale_at,
    pixels,
    eps,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
):
    sample = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    sums = tl.zeros([BLOCK_CHANNELS], tl.float32)
    squares = tl.zeros([BLOCK_CHANNELS], tl.float32)
    for first in range(0, pixels, BLOCK_PIXELS):
        offsets, mask = _tile(sample, channels, first, pixels, CHANNELS, BLOCK_PIXELS)
        x = tl.load(x_at + offsets, mask=mask, other=0.0).to(tl.float32)
        r = tl.where(x < 0, 0.0, x)  # and not a maximum, which would hide NaN
        sums += tl.sum(r, 0)
        squares += tl.sum(r * r, 0)
    n = pixels * PER_GROUP
    mean = _by_group(sums, BLOCK_CHANNELS, PER_GROUP) / n
    variance = _by_group(squares, BLOCK_CHANNELS, PER_GROUP) / n - mean * mean
    scale = 1 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps)
    group = sample * (CHANNELS // PER_GROUP) + channels // PER_GROUP
    tl.store(mean_at + group, mean, mask=channels % PER_GROUP == 0)
    tl.store(scale_at + group, scale, mask=channels % PER_GROUP == 0)
    slope = scale * tl.load(weight_at + channels).to(tl.float32)
    shift = tl.load(bias_at + channels).to(tl.float32) - mean * slope
    for first in range(0, pixels, BLOCK_PIXELS):
        offsets, mask = _tile(sample, channels, first, pixels, CHANNELS, BLOCK_PIXELS)
        x = tl.load(x_at + offsets, mask=mask, other=0.0).to(tl.float32)
        r = tl.where(x < 0, 0.0, x)
        tl.store(y_at + offsets, r * slope[None, :] + shift[None, :], mask=mask)


@triton.jit
def _backward_kernel(
    dy_at,
    x_at,
    weight_at,
    mean_at,
    scale_at,
    dx_at,
    sums_at,
    products_at,
    pixels,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
):
    sample = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    group = sample * (CHANNELS // PER_GROUP) + channels // PER_GROUP
    mean = tl.load(mean_at + group)
    scale = tl.load(scale_at + group)
    weight = tl.load(weight_at + channels).to(tl.float32)
    sums = tl.zeros([BLOCK_CHANNELS], tl.float32)
    products = tl.zeros([BLOCK_CHANNELS], tl.float32)
    for first in range(0, pixels, BLOCK_PIXELS):
        offsets, mask = _tile(sample, channels, first, pixels, CHANNELS, BLOCK_PIXELS)
        x = tl.load(x_at + offsets, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_at + offsets, mask=mask, other=0.0).to(tl.float32)
        z = (tl.where(x < 0, 0.0, x) - mean[None, :]) * scale[None, :]
        sums += tl.sum(dy, 0)
        products += tl.sum(dy * z, 0)
    tl.store(sums_at + sample * CHANNELS + channels, sums)
    tl.store(products_at + sample * CHANNELS + channels, products)
    n = pixels * PER_GROUP
    a = _by_group(weight * sums, BLOCK_CHANNELS, PER_GROUP) / n
    b = _by_group(weight * products, BLOCK_CHANNELS, PER_GROUP) / n
    for first in range(0, pixels, BLOCK_PIXELS):
        offsets, mask = _tile(sample, channels, first, pixels, CHANNELS, BLOCK_PIXELS)
        x = tl.load(x_at + offsets, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_at + offsets, mask=mask, other=0.0).to(tl.float32)
        z = (tl.where(x < 0, 0.0, x) - mean[None, :]) * scale[None, :]
        dr = scale[None, :] * (weight[None, :] * dy - a[None, :] - z * b[None, :])
        tl.store(dx_at + offsets, tl.where(x > 0, dr, 0.0), mask=mask)


def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """norm(relu(x)), and the means and 1 / deviations [N, G] of relu(x)."""
    x = x.contiguous(memory_format=torch.channels_last)
    samples, channels, height, width = x.shape
    y = torch.empty_like(x)
    mean = x.new_empty(samples, groups, dtype=torch.float32)
    scale = torch.empty_like(mean)
    _forward_kernel[samples, channels // BLOCK_CHANNELS](
        x,
        weight,
        bias,
        y,
        mean,
        scale,
        height * width,
        eps,
        CHANNELS=channels,
        PER_GROUP=channels // groups,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        BLOCK_PIXELS=BLOCK_PIXELS,
    )
    return y, mean, scale


def backward(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of bias and weight in one tensor [2, C]."""
    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.contiguous(memory_format=torch.channels_last)
    samples, channels, height, width = x.shape
    dx = torch.empty_like(x)
    partial = x.new_empty(2, samples, channels, dtype=torch.float32)
    _backward_kernel[samples, channels // BLOCK_CHANNELS](
        dy,
        x,
        weight,
        mean,
        scale,
        dx,
        partial[0],
        partial[1],
        height * width,
        CHANNELS=channels,
        PER_GROUP=channels // mean.shape[1],
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        BLOCK_PIXELS=BLOCK_PIXELS,
    )
    return dx, partial.sum(1).to(weight.dtype)
