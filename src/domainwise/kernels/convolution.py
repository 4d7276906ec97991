"""A convolution, its frozen BatchNorm, the sum with a shortcut and ReLU, as one operation where a GPU can do it.

The norm is folded into the convolution (`kernels.fold`), and what is left, relu(conv(x) + bias + shortcut), is what
cuDNN computes before anything is written to memory. Its backward pass is one kernel for ReLU's gradient and its sum
over pixels, the bias's gradient, and cuDNN for the gradients of x and the weights. All this is for bf16; in
float32, which is there to compare, and on other devices, everything is plain PyTorch.
"""

from typing import Any

import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

from domainwise.kernels.fold import fold
from domainwise.kernels.group_norm import TRITON
from domainwise.kernels.layers import watched

TILE = 8192
"""Numbers that a program of the kernel handles at once."""
PROGRAMS = 1056
"""About how many programs share the work: eight for each multiprocessor of a large GPU."""

FEW = 64
"""Inputs up to which a 1x1 convolution that is added to a shortcut is done by our own kernel: cuDNN is slow there."""


def conv_norm_relu(
    x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, shortcut: tuple[Tensor, nn.Module] | None = None
) -> Tensor:
    """relu(norm(conv(x)) + s); a shortcut (z, module) is s = module(z): the identity, or a convolution and its norm."""
    dtype = folding(x, conv, norm, *([] if shortcut is None else [shortcut[1]]))
    if dtype is None:
        y = norm(conv(x))
        if shortcut is not None:
            y += shortcut[1](shortcut[0])
        return F.relu(y, inplace=True)
    weight, bias = fold(conv, norm, dtype)
    beside = None
    if shortcut is not None:
        beside = shortcut[0].to(dtype)
        if isinstance(shortcut[1], nn.Sequential):
            beside, its_bias = _shortened(beside, *shortcut[1])
            bias = bias + its_bias
    stride, padding = conv.stride[0], int(conv.padding[0])
    fused: Tensor = torch.ops.domainwise.conv_relu(x.to(dtype), weight, bias, beside, stride, padding)
    return fused


def _shortened(x: Tensor, conv: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """norm(conv(x)) of a 1x1 convolution, but for a bias, and the bias.

    The pixels that its stride passes over are left out first: cuDNN's strided convolutions take longer than the copy.
    """
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
    weight, bias = fold(conv, norm, x.dtype)
    seen = x[:, :, :: conv.stride[0], :: conv.stride[1]].contiguous(memory_format=torch.channels_last)
    return F.conv2d(seen, weight), bias


def folding(x: Tensor, *layers: nn.Module) -> torch.dtype | None:
    """The dtype to compute in if these layers' norms are to be folded into their convolutions; None if they are not.

    They are in bf16 on a GPU, unless somebody wants to see what a layer puts out, or a norm learns its statistics.
    """
    if not TRITON or not x.is_cuda or not torch.is_autocast_enabled("cuda"):
        return None
    for layer in layers:
        learning = any(module.training and isinstance(module, nn.BatchNorm2d) for module in layer.modules())
        if learning or watched(*layer.modules()):
            return None
    dtype = torch.get_autocast_dtype("cuda")
    return dtype if dtype == torch.bfloat16 else None


def parts(y: Tensor) -> tuple[int, int]:
    """How many programs share the pixels of y, and how many channels each of them handles."""
    columns = next(columns for columns in (256, 128, 64, 32) if y.shape[1] % columns == 0)
    pixels = y.numel() // y.shape[1]
    return min(-(-pixels * columns // TILE), max(1, PROGRAMS * columns // y.shape[1])), columns


def tiles(inputs: int, outputs: int) -> tuple[int, int, int, int, int]:
    """For 1x1 convolutions as matrix products: rows, columns and depth of a tile, warps, and stages of the pipeline."""
    columns, depth = min(128, outputs & -outputs), min(64, inputs & -inputs)
    rows = 64 if inputs == 128 else 128
    return rows, columns, depth, 4 if inputs <= 128 or columns < 128 else 8, min(3, max(2, inputs // depth))


def product_parts(y: Tensor, weight: Tensor) -> int:
    """How many tiles share the pixels of y, a product's gradient of the input."""
    return -(-(y.numel() // y.shape[1]) // tiles(*weight.shape[:2])[0])


@library.custom_op("domainwise::conv_relu", mutates_args=())
def _forward(x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None, stride: int, padding: int) -> Tensor:
    """relu(conv(x) + bias + beside) in channels_last."""
    return convolved(x, weight, bias, beside, stride, padding)


def convolved(x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None, stride: int, padding: int) -> Tensor:
    """relu(conv(x) + bias + beside), by whom it is fastest."""
    x = x.contiguous(memory_format=torch.channels_last)
    if beside is not None and weight[0].numel() <= FEW and stride == 1:
        from domainwise.kernels import product_triton

        return product_triton.forward(x, weight, bias, beside.contiguous(memory_format=torch.channels_last))
    if not x.is_cuda:
        y = F.conv2d(x, weight, bias, stride, padding)
        return F.relu(y if beside is None else y + beside).contiguous(memory_format=torch.channels_last)
    given = bias, [stride] * 2, [padding] * 2, [1, 1], 1
    if beside is None:
        return torch.cudnn_convolution_relu(x, weight, *given)
    return torch.cudnn_convolution_add_relu(x, weight, beside, 1, *given)


@_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None, stride: int, padding: int) -> Tensor:  # noqa: ARG001
    height, width = ((x.shape[i] + 2 * padding - weight.shape[i]) // stride + 1 for i in (2, 3))
    return empty(x, len(weight), height, width)


def empty(x: Tensor, channels: int, height: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for as many samples as x has, on its device, of its dtype or of this one."""
    shape = (len(x), channels, height, width)
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last)


def laid_out(gradient: Tensor) -> Tensor:
    """A gradient in channels_last, as kernels read it; said outside of them, so that compiled code writes it so."""
    return gradient.contiguous(memory_format=torch.channels_last)


@library.custom_op("domainwise::relu_backward", mutates_args=())
def _backward(dy: Tensor, y: Tensor, summed: bool) -> tuple[Tensor, Tensor]:
    """dy where y > 0, in channels_last; and, if wanted, sums of it over parts of the pixels [parts, C]."""
    from domainwise.kernels import relu_triton

    return relu_triton.backward(dy, y, summed=summed)


@_backward.register_fake
def _(dy: Tensor, y: Tensor, summed: bool) -> tuple[Tensor, Tensor]:
    sums = y.new_empty(parts(y)[0] if summed else 0, y.shape[1], dtype=torch.float32)
    return torch.empty_like(dy, memory_format=torch.channels_last), sums


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, _, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, y = ctx.saved_tensors
    for_x, for_weight, for_bias, for_beside = ctx.needs_input_grad[:4]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        dz = torch.where(y <= 0, 0, dy)
        sums = dz.sum((2, 3), dtype=torch.float32)
    else:
        dz, sums = torch.ops.domainwise.relu_backward(laid_out(dy), y, for_bias)
    dx, dweight, _ = torch.ops.aten.convolution_backward(
        dz,
        x,
        weight,
        None,
        [ctx.stride] * 2,
        [ctx.padding] * 2,
        [1, 1],
        False,
        [0, 0],
        1,
        [for_x, for_weight, False],
    )
    dbias = sums.sum(0).to(weight.dtype) if for_bias else None
    return dx, dweight, dbias, dz if for_beside else None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
