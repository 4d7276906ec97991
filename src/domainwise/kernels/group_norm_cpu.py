"""ReLU and GroupNorm on a CPU, forward and backward, over channels_last memory, for groups of few channels; and sums.

The formulas are those of `group_norm_triton`. PyTorch's own kernel takes one group of one pixel at a time, which may
be less than a vector register holds, and then ten times as long. Here whole rows of channels are summed first, and
their sums by group. A few samples at a time are turned to float32, so that nothing but x, dy and results leaves the
cache.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

CACHED = 2**19
"""Numbers of x that are in the cache at a time."""


def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """norm(relu(x)), and the means and 1 / deviations [N, G] of relu(x)."""
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.empty_like(x)
    means, scales = (torch.empty(len(x), groups, 1, dtype=_wide(x)) for _ in range(2))
    weight, bias = weight.view(groups, -1), bias.view(groups, -1)
    n = prod(x.shape[1:]) // groups
    for buffers, x_part, y_part, mean, scale in _parts(2, _rows(x), _rows(y), means, scales):
        r = buffers[0]
        first, second = _by_group(_powers(x_part, buffers), groups).sum(3, keepdim=True).div_(n)
        mean.copy_(first)
        torch.rsqrt(second.addcmul_(first, first, value=-1).clamp_min_(0).add_(eps), out=scale)
        slope = scale * weight
        shift = torch.addcmul(bias, mean, slope, value=-1)
        y_part.copy_(torch.addcmul(_row(shift), r, _row(slope), out=r))
    return y, means.squeeze(2), scales.squeeze(2)


def backward(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of bias and weight in one tensor [2, C]."""
    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.contiguous(memory_format=torch.channels_last)
    dx = torch.empty_like(x)
    mean, scale = mean.unsqueeze(2), scale.unsqueeze(2)
    weight = weight.view(mean.shape[1], -1)
    gradients = torch.zeros(2, *weight.shape, dtype=_wide(x))
    n = prod(x.shape[1:]) // len(weight)
    for buffers, x_part, dy_part, dx_part, m, s in _parts(3, _rows(x), _rows(dy), _rows(dx), mean, scale):
        r, dr, products = buffers
        torch.mul(dr.copy_(dy_part), r.copy_(x_part).relu_(), out=products)
        sums = _by_group(buffers[1:].sum(2), len(weight))
        dbias, dweight = sums
        dweight.addcmul_(dbias, m, value=-1).mul_(s)
        gradients += sums.sum(1)
        slope = s * weight
        constant, by_r = (slope * sums).sum(3, keepdim=True).div_(-n)
        constant.addcmul_(by_r.mul_(s), m, value=-1)
        torch.addcmul(_row(constant.expand_as(slope)), dr, _row(slope), out=dr).addcmul_(r, _row(by_r.expand_as(slope)))
        dx_part.copy_(torch.ops.aten.threshold_backward.grad_input(dr, r, 0, grad_input=dr))
    return dx, gradients.flatten(1)


def moments(x: Tensor) -> Tensor:
    """Sums over pixels of relu(x) and of its squares, [2, N, C]."""
    x = x.contiguous(memory_format=torch.channels_last)
    sums = torch.empty(len(x), 2, x.shape[1], dtype=_wide(x))
    for buffers, x_part, own in _parts(2, _rows(x), sums):
        own.copy_(_powers(x_part, buffers).transpose(0, 1))
    return sums.transpose(0, 1)


def _rows(x: Tensor) -> Tensor:
    """The rows of channels [N, HW, C] as they lie in memory."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def _parts(count: int, rows: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """A few samples of each at a time, after as much of `count` wide buffers as their rows need."""
    size = min(len(rows), max(1, CACHED // prod(rows.shape[1:])))
    buffers = torch.empty(count, size, *rows.shape[1:], dtype=_wide(rows))
    for parts in zip(*(tensor.split(size) for tensor in (rows, *others)), strict=True):
        yield buffers[:, : len(parts[0])], *parts


def _wide(x: Tensor) -> torch.dtype:
    """float32, or what is wider."""
    return torch.promote_types(x.dtype, torch.float32)


def _powers(x_part: Tensor, buffers: Tensor) -> Tensor:
    """relu(x) and its squares in two buffers, and the sums of both over pixels [2, N, C]."""
    r, squares = buffers
    torch.mul(r.copy_(x_part).relu_(), r, out=squares)
    return buffers.sum(2)


def _by_group(sums: Tensor, groups: int) -> Tensor:
    """[2, N, C] as [2, N, G, C / G]."""
    return sums.unflatten(2, (groups, -1))


def _row(values: Tensor) -> Tensor:
    """Values [N, G, C / G] of the channels as a row [N, 1, C]."""
    return values.flatten(1).unsqueeze(1)
