"""A 1x1 convolution, or its gradient of the input, as a matrix product that finishes the work, as a Triton kernel.

Over channels_last memory it is the product of a matrix [pixels, inputs] with one [inputs, outputs]. Before a tile of
the result is written, the kernel adds a bias and another tensor, applies ReLU or the mask of an earlier ReLU, and sums
over the tile's pixels: each would otherwise be another pass over memory, and 1x1 convolutions do little else.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domainwise.kernels.convolution import product_parts, product_tiles
from domainwise.kernels.custom_op import empty


@triton.jit
def _product_kernel(
    x_at,
    weight_at,
    bias_at,
    beside_at,
    mask_at,
    y_at,
    sums_at,
    pixels,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    FORWARD: tl.constexpr,
    BESIDE: tl.constexpr,
    MASK: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    block = tl.program_id(0) // (OUTPUTS // COLUMNS)
    pixel = block * ROWS + tl.arange(0, ROWS)
    known = (pixel < pixels)[:, None]
    row = pixel.to(tl.int64)[:, None]
    column = tl.program_id(0) % (OUTPUTS // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
    y = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, INPUTS, DEPTH):
        k = first + tl.arange(0, DEPTH)
        x = tl.load(x_at + row * INPUTS + k[None, :], mask=known, other=0.0)
        if FORWARD:
            weight = tl.load(weight_at + column[None, :] * INPUTS + k[:, None])
        else:
            weight = tl.load(weight_at + k[:, None] * OUTPUTS + column[None, :])
        y = tl.dot(x, weight, y, input_precision="ieee")
    offsets = row * OUTPUTS + column[None, :]
    if BESIDE:
        y += tl.load(beside_at + offsets, mask=known, other=0.0).to(tl.float32)
    if FORWARD:
        y += tl.load(bias_at + column).to(tl.float32)[None, :]
        y = tl.where(y <= 0, 0.0, y)
    if MASK:
        y = tl.where(tl.load(mask_at + offsets, mask=known, other=0.0) <= 0, 0.0, y)
    tl.store(y_at + offsets, y, mask=known)
    if SUM:
        tl.store(sums_at + block * OUTPUTS + column, tl.sum(y, 0))


def forward(x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None) -> Tensor:
    """relu(conv(x, weight) + bias + beside)."""
    y = empty(x, len(weight), *x.shape[2:])
    _launch(x, weight, y, bias=bias, beside=beside)
    return y


def backward(
    dz: Tensor, weight: Tensor, mask: Tensor | None, beside: Tensor | None, *, summed: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of x plus `beside`, where mask > 0; and sums of it over parts of the pixels, or none of them."""
    dx = empty(dz, weight.shape[1], *dz.shape[2:])
    sums = dz.new_empty(product_parts(dx, weight) if summed else 0, dx.shape[1], dtype=torch.float32)
    _launch(dz, weight, dx, mask=mask, beside=beside, sums=sums if summed else None)
    return dx, sums


def _launch(
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    *,
    bias: Tensor | None = None,
    beside: Tensor | None = None,
    mask: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    rows, columns, depth, warps, stages = product_tiles(x.shape[1], y.shape[1])
    pixels = y.numel() // y.shape[1]
    _product_kernel[triton.cdiv(pixels, rows) * (y.shape[1] // columns),](
        x,
        weight,
        bias,
        beside,
        mask,
        y,
        sums,
        pixels,
        INPUTS=x.shape[1],
        OUTPUTS=y.shape[1],
        FORWARD=bias is not None,
        BESIDE=beside is not None,
        MASK=mask is not None,
        SUM=sums is not None,
        ROWS=rows,
        COLUMNS=columns,
        DEPTH=depth,
        num_warps=warps,
        num_stages=stages,
    )
