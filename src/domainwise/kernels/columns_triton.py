"""A 3x3 convolution as a product with the columns of an image: the 9 C numbers around each pixel, padded to TAPS."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TAPS = 32
PIXELS_AT_ONCE = 256


@triton.jit
def columns_of(
    image_at, sample, pixel, per_sample, per_channel, per_row, per_column, INPUTS: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """What the convolution sees of the image around these pixels, [BLOCK_PIXELS, TAPS]."""
    tap = tl.arange(0, TAPS)
    row = (pixel // WIDTH)[:, None] + (tap % 9 // 3 - 1)[None, :]
    column = (pixel % WIDTH)[:, None] + (tap % 3 - 1)[None, :]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    inside = inside & (pixel < HEIGHT * WIDTH)[:, None] & (tap < 9 * INPUTS)[None, :]
    offsets = sample.to(tl.int64) * per_sample + (tap // 9 * per_channel)[None, :] + row * per_row + column * per_column
    return tl.load(image_at + offsets, mask=inside, other=0.0)


@triton.jit
def kernel_matrix(kernel_at, channels, per_input, per_tap, INPUTS: tl.constexpr, TAPS: tl.constexpr):
    """The convolution's weights [TAPS, BLOCK_CHANNELS]."""
    tap = tl.arange(0, TAPS)
    offsets = channels[None, :] * (9 * INPUTS) + (tap // 9 * per_input + tap % 9 * per_tap)[:, None]
    return tl.load(kernel_at + offsets, mask=(tap < 9 * INPUTS)[:, None], other=0.0)


@triton.jit
def _image_kernel(
    dcolumns_at,
    dimage_at,
    samples,
    per_sample,
    per_channel,
    per_row,
    per_column,
    INPUTS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
):
    """The gradient of an image: what each of the nine places says that saw a pixel, in each block of channels."""
    sample = tl.program_id(0)
    pixel = tl.program_id(1) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    for channel in tl.static_range(INPUTS):
        total = tl.zeros([BLOCK_PIXELS], tl.float32)
        for tap in tl.static_range(9):
            row = pixel // WIDTH - (tap // 3 - 1)
            column = pixel % WIDTH - (tap % 3 - 1)
            inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH) & (pixel < HEIGHT * WIDTH)
            for block in tl.static_range(BLOCKS):
                at = (block * samples + sample).to(tl.int64) * (HEIGHT * WIDTH) + row * WIDTH + column
                total += tl.load(dcolumns_at + at * (9 * INPUTS) + channel * 9 + tap, mask=inside, other=0.0)
        offsets = sample.to(tl.int64) * per_sample + channel * per_channel
        offsets += (pixel // WIDTH) * per_row + (pixel % WIDTH) * per_column
        tl.store(dimage_at + offsets, total, mask=pixel < HEIGHT * WIDTH)


def image_gradient(dcolumns: Tensor, image: Tensor) -> Tensor:
    """The gradient of an image like this one, from the gradients of its columns [blocks of channels, N, H W, 9 C]."""
    samples, inputs, height, width = image.shape
    dimage = torch.empty_like(image)
    _image_kernel[samples, triton.cdiv(height * width, PIXELS_AT_ONCE)](
        dcolumns,
        dimage,
        samples,
        *dimage.stride(),
        INPUTS=inputs,
        HEIGHT=height,
        WIDTH=width,
        BLOCKS=len(dcolumns),
        BLOCK_PIXELS=PIXELS_AT_ONCE,
    )
    return dimage
