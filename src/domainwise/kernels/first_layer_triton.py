"""A 3x3 convolution of few channels, bias, ReLU and GroupNorm as Triton kernels, forward and backward.

The convolution is a product with the columns of the image (`columns_triton`). Its result after ReLU, r, is rounded to
the dtype of y and kept; y is found from what is kept, means and deviations from r before it is rounded. Where nothing
is to be kept, r lies for a while where y will be. With dx the gradient of the convolution's result as in
`group_norm_triton`, the gradients are

    dW = sum over samples and pixels of dx columns,    d(image) = the columns' gradients dx W, each put where it is from

A program handles one sample and a block of channels of the result, in two passes over its pixels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels import columns_triton
from domainwise.kernels.columns_triton import TAPS, columns_of, kernel_matrix
from domainwise.kernels.group_norm import BLOCK_CHANNELS
from domainwise.kernels.sums_triton import by_group, sum_rows

BLOCK_PIXELS, BLOCK_PIXELS_BACKWARD = 64, 32
"""Backward with 64, Triton 3.6 has been seen to get the gradient of the kernel wrong: bf16, 3 x 11 x 8 -> 128."""
WARPS = 4
MOST_CHANNELS = 64
"""All of the MNIST CNN's first layer, so that columns are gathered once."""


@triton.jit
def _tile(sample, pixel, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Offsets and mask of some pixels of the result, [BLOCK_PIXELS, BLOCK_CHANNELS]."""
    offsets = (sample.to(tl.int64) * PIXELS + pixel)[:, None] * CHANNELS + channels[None, :]
    return offsets, (pixel < PIXELS)[:, None]


@triton.jit
def _forward_kernel(
    image_at,
    kernel_at,
    shift_at,
    weight_at,
    bias_at,
    r_at,
    y_at,
    mean_at,
    scale_at,
    per_sample,
    per_channel,
    per_row,
    per_column,
    per_input,
    per_tap,
    eps,
    INPUTS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
    TYPE: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
):
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    sample = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    kernel = kernel_matrix(kernel_at, channels, per_input, per_tap, INPUTS, TAPS).to(TYPE)
    shift = tl.load(shift_at + channels)
    weight = tl.load(weight_at + channels)
    bias = tl.load(bias_at + channels)
    every_sum = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    every_square = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    for first in range(0, PIXELS, BLOCK_PIXELS):
        pixel = first + tl.arange(0, BLOCK_PIXELS)
        columns = columns_of(
            image_at, sample, pixel, per_sample, per_channel, per_row, per_column, INPUTS, HEIGHT, WIDTH, TAPS
        ).to(TYPE)
        offsets, mask = _tile(sample, pixel, channels, PIXELS, CHANNELS)
        x = tl.dot(columns, kernel, input_precision=PRECISION) + shift[None, :]
        r = tl.where((x < 0) | (mask == 0), 0.0, x)  # NaN stays NaN
        every_sum += r
        every_square += r * r
        tl.store(r_at + offsets, r, mask=mask)
    n = PIXELS * PER_GROUP
    mean = by_group(tl.sum(every_sum, 0), BLOCK_CHANNELS, PER_GROUP) / n
    variance = by_group(tl.sum(every_square, 0), BLOCK_CHANNELS, PER_GROUP) / n - mean * mean
    scale = 1 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps)
    group = sample * (CHANNELS // PER_GROUP) + channels // PER_GROUP
    tl.store(mean_at + group, mean, mask=channels % PER_GROUP == 0)
    tl.store(scale_at + group, scale, mask=channels % PER_GROUP == 0)
    slope = scale * weight
    level = bias - mean * slope
    tl.debug_barrier()  # another thread may have written r
    for first in range(0, PIXELS, BLOCK_PIXELS):
        offsets, mask = _tile(sample, first + tl.arange(0, BLOCK_PIXELS), channels, PIXELS, CHANNELS)
        r = tl.load(r_at + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_at + offsets, r * slope[None, :] + level[None, :], mask=mask)


@triton.jit
def _backward_kernel(
    dy_at,
    r_at,
    image_at,
    kernel_at,
    weight_at,
    mean_at,
    scale_at,
    dcolumns_at,
    sums_at,
    samples,
    per_sample,
    per_channel,
    per_row,
    per_column,
    per_input,
    per_tap,
    INPUTS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    IMAGE_WANTED: tl.constexpr,
    WANTED: tl.constexpr,
    PRECISION: tl.constexpr,
    TYPE: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
):
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    sample = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    group = sample * (CHANNELS // PER_GROUP) + channels // PER_GROUP
    mean = tl.load(mean_at + group)
    scale = tl.load(scale_at + group)
    weight = tl.load(weight_at + channels)
    every_sum = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    every_product = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    for first in range(0, PIXELS, BLOCK_PIXELS):
        pixel = first + tl.arange(0, BLOCK_PIXELS)
        offsets, mask = _tile(sample, pixel, channels, PIXELS, CHANNELS)
        r = tl.load(r_at + offsets, mask=mask, other=0.0).to(tl.float32)
        z = (r - mean[None, :]) * scale[None, :]
        dy = tl.load(dy_at + offsets, mask=mask, other=0.0).to(tl.float32)
        every_sum += dy
        every_product += dy * z
    sums = tl.sum(every_sum, 0)
    products = tl.sum(every_product, 0)
    n = PIXELS * PER_GROUP
    a = by_group(weight * sums, BLOCK_CHANNELS, PER_GROUP) / n
    b = by_group(weight * products, BLOCK_CHANNELS, PER_GROUP) / n
    kernel = kernel_matrix(kernel_at, channels, per_input, per_tap, INPUTS, TAPS).to(TYPE)
    tap = tl.arange(0, TAPS)
    every_slope = tl.zeros([BLOCK_PIXELS, BLOCK_CHANNELS], tl.float32)
    dkernel = tl.zeros([TAPS, BLOCK_CHANNELS], tl.float32)
    for first in range(0, PIXELS, BLOCK_PIXELS):
        pixel = first + tl.arange(0, BLOCK_PIXELS)
        offsets, mask = _tile(sample, pixel, channels, PIXELS, CHANNELS)
        r = tl.load(r_at + offsets, mask=mask, other=0.0).to(tl.float32)
        z = (r - mean[None, :]) * scale[None, :]
        dy = tl.load(dy_at + offsets, mask=mask, other=0.0).to(tl.float32)
        dr = scale[None, :] * (weight[None, :] * dy - a[None, :] - z * b[None, :])
        dx = tl.where(r > 0, dr, 0.0)
        if WANTED:
            columns = columns_of(
                image_at, sample, pixel, per_sample, per_channel, per_row, per_column, INPUTS, HEIGHT, WIDTH, TAPS
            ).to(TYPE)
            every_slope += dx
            dkernel = tl.dot(tl.trans(columns), dx.to(TYPE), dkernel, input_precision=PRECISION)
        if IMAGE_WANTED:
            dcolumns = tl.dot(dx.to(TYPE), tl.trans(kernel), input_precision=PRECISION)
            row = (tl.program_id(1) * samples + sample).to(tl.int64) * PIXELS + pixel
            tl.store(
                dcolumns_at + row[:, None] * (9 * INPUTS) + tap[None, :],
                dcolumns,
                mask=mask & (tap < 9 * INPUTS)[None, :],
            )
    if WANTED:
        at = sums_at + sample * (9 * INPUTS + 3) * CHANNELS + channels
        tl.store(at, tl.sum(every_slope, 0))
        tl.store(at + CHANNELS, products)
        tl.store(at + 2 * CHANNELS, sums)
        tl.store(at[None, :] + (3 + tap)[:, None] * CHANNELS, dkernel, mask=(tap < 9 * INPUTS)[:, None])


def block_of(channels: int) -> int:
    """How many channels one program handles."""
    return MOST_CHANNELS if channels % MOST_CHANNELS == 0 else BLOCK_CHANNELS


def _settings(image: Tensor, groups: int, channels: int, dtype: torch.dtype) -> dict[str, object]:
    """How large things are, and how precisely products are computed."""
    strict = torch.get_float32_matmul_precision() == "highest"
    return {
        "INPUTS": image.shape[1],
        "HEIGHT": image.shape[2],
        "WIDTH": image.shape[3],
        "CHANNELS": channels,
        "PER_GROUP": channels // groups,
        "PRECISION": "ieee" if strict else "tf32",
        "TYPE": tl.bfloat16 if dtype == torch.bfloat16 else tl.float32,
        "TAPS": TAPS,
        "BLOCK_CHANNELS": block_of(channels),
        "num_warps": WARPS,
    }


def forward(
    image: Tensor,
    kernel: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    dtype: torch.dtype,
    kept: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y = norm(r) in this dtype, r = relu(convolution) if it is to be kept, its means and 1 / deviations [N, G]."""
    (samples, _, height, width), channels = image.shape, len(kernel)
    shape = (samples, channels, height, width)
    y = torch.empty(shape, dtype=dtype, device=image.device, memory_format=torch.channels_last)
    r = torch.empty_like(y) if kept else y
    mean = image.new_empty(samples, groups, dtype=torch.float32)
    scale = torch.empty_like(mean)
    _forward_kernel[samples, channels // block_of(channels)](
        image,
        kernel,
        shift,
        weight,
        bias,
        r,
        y,
        mean,
        scale,
        *image.stride(),
        kernel.stride(1),
        kernel.stride(3),
        eps,
        BLOCK_PIXELS=BLOCK_PIXELS,
        **_settings(image, groups, channels, dtype),
    )
    return y, r if kept else y.new_empty(0), mean, scale


def backward(
    dy: Tensor,
    r: Tensor,
    image: Tensor,
    kernel: Tensor,
    weight: Tensor,
    mean: Tensor,
    scale: Tensor,
    image_wanted: bool,
    wanted: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient of the image, and those of shift, weight, bias and kernel in one [3 + 9 C_in, C], if wanted."""
    dy = dy.contiguous(memory_format=torch.channels_last)
    (samples, inputs, height, width), channels = image.shape, len(kernel)
    blocks, taps = channels // block_of(channels), 9 * inputs
    dcolumns = image.new_empty(blocks, samples if image_wanted else 0, height * width, taps)
    sums = image.new_empty(samples if wanted else 0, 3 + taps, channels)
    _backward_kernel[samples, blocks](
        dy,
        r,
        image,
        kernel,
        weight,
        mean,
        scale,
        dcolumns,
        sums,
        samples,
        *image.stride(),
        kernel.stride(1),
        kernel.stride(3),
        IMAGE_WANTED=image_wanted,
        WANTED=wanted,
        BLOCK_PIXELS=BLOCK_PIXELS_BACKWARD,
        **_settings(image, mean.shape[1], channels, dy.dtype),
    )
    dimage = columns_triton.image_gradient(dcolumns, image) if image_wanted else image.new_empty(0)
    return dimage, sum_rows(sums) if wanted else sums.new_empty(0)
