"""The start of a ResNet, a 7x7 convolution of the image, BatchNorm, ReLU and max-pooling, for GPUs.

Matrix units want many channels and an image has three. So squares of 2x2 pixels become one pixel of four times the
channels, and four such squares in a row one of sixteen times; the 7x7 kernel with stride 2 becomes a kernel of height 4
and width 1 with stride 1: the same sum, in another order. The norm is folded into the convolution (`kernels.fold`); its
bias, ReLU and max-pooling are one kernel in each direction.
"""

from typing import Any

import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

from domainwise.kernels.convolution import empty, folding, laid_out
from domainwise.kernels.fold import fold

BLOCK = 8
"""Windows of a row that a program of the pooling handles at once."""
PROGRAMS = 4224
"""How many programs share the pooling's backward pass at most: 32 for each multiprocessor of a large GPU."""


def conv_norm_relu_pool(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """max_pool(relu(norm(conv(x)))) of a 7x7 convolution with stride 2 and a 3x3 pool with stride 2."""
    dtype = folding(x, conv, norm)
    if dtype is None:
        return F.max_pool2d(F.relu(norm(conv(x)), inplace=True), 3, stride=2, padding=1)
    weight, bias = fold(conv, norm, dtype)
    y = F.conv2d(torch.ops.domainwise.windows(x, dtype), kernel(weight))
    fused: Tensor = torch.ops.domainwise.relu_pool(y, bias)[0]
    return fused


def window_channels(inputs: int) -> int:
    """The channels of a window: four squares of 2x2 pixels, and zeros up to a power of two."""
    return 1 << (16 * inputs - 1).bit_length()


def windows(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, 16 C and some zeros, ceil(H / 2) + 3, ceil(W / 2)] in channels_last, in plain PyTorch."""
    height, width = x.shape[2:]
    rows = _squares(F.pad(x, [4, 2 + width % 2, 4, 2 + height % 2]))
    columns = rows.shape[2] - 3
    return _filled(torch.cat([rows[:, :, i : i + columns] for i in range(4)], 3))


def kernel(weight: Tensor) -> Tensor:
    """[O, C, 7, 7] -> [O, ..., 4, 1]: what makes of `windows` what `weight` makes of the image, with stride 2."""
    return _filled(_squares(F.pad(weight, [1, 0, 1, 0])).reshape(len(weight), 4, 1, -1))


def _squares(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H / 2, W / 2, 4 C]."""
    n, channels, height, width = x.shape
    x = x.view(n, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(n, height // 2, width // 2, 4 * channels)


def _filled(x: Tensor) -> Tensor:
    """[N, H, W, 16 C] -> [N, window_channels(C), H, W]."""
    return F.pad(x, [0, window_channels(x.shape[3] // 16) - x.shape[3]]).permute(0, 3, 1, 2)


@library.custom_op("domainwise::windows", mutates_args=())
def _gather(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`windows` in this dtype."""
    from domainwise.kernels import windows_triton

    return windows_triton.forward(x, dtype)


@_gather.register_fake
def _(x: Tensor, dtype: torch.dtype) -> Tensor:
    channels, height, width = x.shape[1:]
    return empty(x, window_channels(channels), (height + 1) // 2 + 3, (width + 1) // 2, dtype)


@library.custom_op("domainwise::windows_backward", mutates_args=())
def _scatter(dy: Tensor, channels: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """The gradient of the image."""
    from domainwise.kernels import windows_triton

    return windows_triton.backward(dy, channels, height, width, dtype)


@_scatter.register_fake
def _(dy: Tensor, channels: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    return empty(dy, channels, height, width, dtype)


def _remember(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:  # noqa: ARG001
    ctx.shape, ctx.dtype = inputs[0].shape[1:], inputs[0].dtype


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
    if torch.is_grad_enabled():  # the gradient is to be differentiated again: by PyTorch's own formulas
        x = dy.new_zeros(len(dy), *ctx.shape).requires_grad_()
        return torch.autograd.grad(windows(x), x, dy, create_graph=True)[0].to(ctx.dtype), None
    return torch.ops.domainwise.windows_backward(laid_out(dy), *ctx.shape, ctx.dtype), None


_gather.register_autograd(_gradient, setup_context=_remember)


def parts(y: Tensor) -> int:
    """How many programs share the windows y in the backward pass."""
    return min(len(y) * y.shape[2] * -(-y.shape[3] // BLOCK), PROGRAMS)


@library.custom_op("domainwise::relu_pool", mutates_args=())
def _forward(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """max_pool(relu(x + bias)), and which pixel of each window it is, for the backward pass."""
    from domainwise.kernels import pool_triton

    return pool_triton.forward(x, bias)


@_forward.register_fake
def _(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    y = empty(x, x.shape[1], (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2)
    return y, torch.empty_like(y, dtype=torch.uint8)


@library.custom_op("domainwise::relu_pool_backward", mutates_args=())
def _backward(dy: Tensor, winner: Tensor, height: int, width: int, summed: bool) -> tuple[Tensor, Tensor]:
    """The gradient of x, and, if wanted, sums of the bias's gradient over parts of the windows [parts, C]."""
    from domainwise.kernels import pool_triton

    return pool_triton.backward(dy, winner, height, width, summed=summed)


@_backward.register_fake
def _(dy: Tensor, winner: Tensor, height: int, width: int, summed: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    sums = dy.new_empty(parts(dy) if summed else 0, dy.shape[1], dtype=torch.float32)
    return empty(dy, dy.shape[1], height, width), sums


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


def _gradients(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
    x, bias, winner = ctx.saved_tensors
    for_bias = ctx.needs_input_grad[1]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again: by PyTorch's own formulas
        y = F.max_pool2d(F.relu(x + bias.to(x.dtype)[:, None, None]), 3, stride=2, padding=1)
        wanted = [tensor for tensor in (x, bias) if tensor.requires_grad]
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
        return tuple(next(found) if tensor.requires_grad else None for tensor in (x, bias))
    dx, sums = torch.ops.domainwise.relu_pool_backward(laid_out(dy), winner, *x.shape[2:], for_bias)
    return dx, sums.sum(0).to(bias.dtype) if for_bias else None


_forward.register_autograd(_gradients, setup_context=_save)
