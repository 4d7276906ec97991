"""A convolution, its frozen BatchNorm, the sum with a shortcut and ReLU, as one operation where a GPU can do it.

The norm is folded into the convolution (`kernels.fold`), and what is left, relu(conv(x) + bias + shortcut), is what
cuDNN computes before anything is written to memory. Its backward pass is one kernel for ReLU's gradient and its sum
over pixels, the bias's gradient, and cuDNN for the gradients of x and the weights. All this is for bf16; in
float32, which is there to compare, and on other devices, everything is plain PyTorch.
"""
# ruff: noqa: ARG001 (functions that say shapes have all arguments of the operator)

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels.custom_op import channels_last, custom_op, empty
from domainwise.kernels.fold import DTYPE, folded

TILE = 8192
"""Numbers that a program of the kernel handles at once."""
PROGRAMS = 1056
"""About how many programs share the work: eight for each multiprocessor of a large GPU."""

FEW_INPUTS = 64
"""Inputs up to which a 1x1 convolution that is added to a shortcut is done by our own kernel: cuDNN is slow there."""


def conv_norm_relu(
    x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, shortcut: tuple[Tensor, nn.Module] | None = None
) -> Tensor:
    """relu(norm(conv(x)) + s); a shortcut (z, module) is s = module(z): the identity, or a convolution and its norm."""
    weight, bias = folded(conv, norm)
    added = None
    if shortcut is not None:
        added = shortcut[0].to(DTYPE)
        if isinstance(shortcut[1], nn.Sequential):
            added, shortcut_bias = _projected(added, *shortcut[1])
            bias = bias + shortcut_bias
    stride, padding = conv.stride[0], int(conv.padding[0])
    y: Tensor = torch.ops.domainwise.conv_relu(x.to(DTYPE), weight, bias, added, stride, padding)
    return y


def _projected(x: Tensor, conv: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """norm(conv(x)) of a 1x1 convolution, but for a bias, and the bias.

    The pixels that its stride passes over are left out first: cuDNN's strided convolutions take longer than the copy.
    """
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
    weight, bias = folded(conv, norm)
    return F.conv2d(channels_last(x[:, :, :: conv.stride[0], :: conv.stride[1]]), weight), bias


def pixel_parts(y: Tensor) -> tuple[int, int]:
    """How many programs share the pixels of y, and how many channels each of them handles."""
    columns = next(columns for columns in (256, 128, 64, 32) if y.shape[1] % columns == 0)
    pixels = y.numel() // y.shape[1]
    return min(-(-pixels * columns // TILE), max(1, PROGRAMS * columns // y.shape[1])), columns


def product_tiles(inputs: int, outputs: int) -> tuple[int, int, int, int, int]:
    """For 1x1 convolutions as matrix products: rows, columns and depth of a tile, warps, and stages of the pipeline."""
    columns, depth = min(128, outputs & -outputs), min(64, inputs & -inputs)
    rows = 64 if inputs == 128 else 128
    return rows, columns, depth, 4 if inputs <= 128 or columns < 128 else 8, min(3, max(2, inputs // depth))


def product_parts(y: Tensor, weight: Tensor) -> int:
    """How many tiles share the pixels of y, a product's gradient of the input."""
    return -(-(y.numel() // y.shape[1]) // product_tiles(*weight.shape[:2])[0])


def compute_conv_relu(
    x: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, stride: int, padding: int
) -> Tensor:
    """relu(conv(x) + bias + added) in channels_last, by whichever library is fastest."""
    x = channels_last(x)
    if added is not None and weight[0].numel() <= FEW_INPUTS and stride == 1:
        from domainwise.kernels import product_triton

        return product_triton.forward(x, weight, bias, channels_last(added))
    if not x.is_cuda:
        y = F.conv2d(x, weight, bias, stride, padding)
        return channels_last(F.relu(y if added is None else y + added))
    given = bias, [stride] * 2, [padding] * 2, [1, 1], 1
    if added is None:
        return torch.cudnn_convolution_relu(x, weight, *given)
    return torch.cudnn_convolution_add_relu(x, weight, added, 1, *given)


@custom_op(compute_conv_relu)
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, stride: int, padding: int) -> Tensor:
    """relu(conv(x) + bias + added) in channels_last."""
    height, width = ((x.shape[i] + 2 * padding - weight.shape[i]) // stride + 1 for i in (2, 3))
    return empty(x, len(weight), height, width)


@custom_op("relu_triton.backward")
def relu_backward(dy: Tensor, y: Tensor, summed: bool) -> tuple[Tensor, Tensor]:
    """dy where y > 0, in channels_last; and, if wanted, sums of it over parts of the pixels [parts, C]."""
    sums = y.new_empty(pixel_parts(y)[0] if summed else 0, y.shape[1], dtype=torch.float32)
    return torch.empty_like(dy, memory_format=torch.channels_last), sums


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, _, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, y = ctx.saved_tensors
    for_x, for_weight, for_bias, for_added = ctx.needs_input_grad[:4]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        dz = torch.where(y <= 0, 0, dy)
        sums = dz.sum((2, 3), dtype=torch.float32)
    else:
        dz, sums = torch.ops.domainwise.relu_backward(channels_last(dy), y, for_bias)
    given = dz, x, weight, None, [ctx.stride] * 2, [ctx.padding] * 2, [1, 1], False, [0, 0], 1
    dx, dweight, _ = torch.ops.aten.convolution_backward(*given, [for_x, for_weight, False])
    dbias = sums.sum(0).to(weight.dtype) if for_bias else None
    return dx, dweight, dbias, dz if for_added else None, None, None


conv_relu.register_autograd(_gradients, setup_context=_save)
