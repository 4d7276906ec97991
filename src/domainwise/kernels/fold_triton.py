"""A BatchNorm folded into a convolution's weights, and the gradients, as Triton kernels.

With r = 1 / sqrt(variance + eps), a = gamma r, W' = a W and b' = beta - mean a, for every output channel:

    dW = a dW',    dgamma = r (sum(dW' W) - mean db'),    dbeta = db'

A program handles some output channels, whose weights lie side by side in memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024
"""Weights that a program handles at once."""


@triton.jit
def _fold_kernel(
    weight_at,
    gamma_at,
    beta_at,
    mean_at,
    variance_at,
    folded_at,
    bias_at,
    outputs,
    eps,
    WEIGHTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = row < outputs
    r = 1 / tl.sqrt(tl.load(variance_at + row, mask=known, other=1.0) + eps)
    slope = tl.load(gamma_at + row, mask=known, other=0.0) * r
    offsets, mask = row[:, None] * WEIGHTS + column[None, :], known[:, None] & (column < WEIGHTS)[None, :]
    tl.store(folded_at + offsets, tl.load(weight_at + offsets, mask=mask, other=0.0) * slope[:, None], mask=mask)
    if tl.program_id(1) == 0:
        shift = tl.load(beta_at + row, mask=known, other=0.0)
        tl.store(bias_at + row, shift - tl.load(mean_at + row, mask=known, other=0.0) * slope, mask=known)


@triton.jit
def _fold_backward_kernel(
    dfolded_at,
    dbias_at,
    weight_at,
    gamma_at,
    mean_at,
    variance_at,
    dweight_at,
    dgamma_at,
    dbeta_at,
    outputs,
    eps,
    WEIGHTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = row < outputs
    r = 1 / tl.sqrt(tl.load(variance_at + row, mask=known, other=1.0) + eps)
    slope = tl.load(gamma_at + row, mask=known, other=0.0) * r
    products = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in tl.static_range(0, WEIGHTS, COLUMNS):  # unrolled, so that no load waits for another
        column = first + tl.arange(0, COLUMNS)
        offsets, mask = row[:, None] * WEIGHTS + column[None, :], known[:, None] & (column < WEIGHTS)[None, :]
        dfolded = tl.load(dfolded_at + offsets, mask=mask, other=0.0).to(tl.float32)
        products += dfolded * tl.load(weight_at + offsets, mask=mask, other=0.0)
        tl.store(dweight_at + offsets, dfolded * slope[:, None], mask=mask)
    dbias = tl.load(dbias_at + row, mask=known, other=0.0).to(tl.float32)
    mean = tl.load(mean_at + row, mask=known, other=0.0)
    tl.store(dgamma_at + row, r * (tl.sum(products, 1) - mean * dbias), mask=known)
    tl.store(dbeta_at + row, dbias, mask=known)


def _blocks(weight: Tensor) -> tuple[int, int, int]:
    """Weights of an output channel, and how many channels, and weights of each, make a tile."""
    weights = weight[0].numel()
    columns = min(triton.next_power_of_2(weights), TILE)
    return weights, TILE // columns, columns


def forward(
    weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """W' in channels_last, and b'."""
    weight = weight.contiguous(memory_format=torch.channels_last)
    folded = torch.empty_like(weight, dtype=dtype, memory_format=torch.channels_last)
    bias = torch.empty_like(beta, dtype=dtype)
    weights, rows, columns = _blocks(weight)
    _fold_kernel[triton.cdiv(len(weight), rows), triton.cdiv(weights, columns)](
        weight,
        gamma,
        beta,
        mean,
        variance,
        folded,
        bias,
        len(weight),
        eps,
        WEIGHTS=weights,
        ROWS=rows,
        COLUMNS=columns,
    )
    return folded, bias


def backward(
    dfolded: Tensor, dbias: Tensor, weight: Tensor, gamma: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """dW in channels_last, dgamma and dbeta."""
    weight = weight.contiguous(memory_format=torch.channels_last)
    dfolded = dfolded.contiguous(memory_format=torch.channels_last)
    dweight = torch.empty_like(weight, memory_format=torch.channels_last)
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
    weights, rows, columns = _blocks(weight)
    _fold_backward_kernel[triton.cdiv(len(weight), rows),](
        dfolded,
        dbias,
        weight,
        gamma,
        mean,
        variance,
        dweight,
        dgamma,
        dbeta,
        len(weight),
        eps,
        WEIGHTS=weights,
        ROWS=rows,
        COLUMNS=columns,
    )
    return dweight, dgamma, dbeta
