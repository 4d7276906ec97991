"""The start of a ResNet, a 7x7 convolution of the image, BatchNorm, ReLU and max-pooling, for GPUs.

Matrix units want many channels and an image has three. So squares of 2x2 pixels become one pixel of four times the
channels, and four such squares in a row one of sixteen times; the 7x7 kernel with stride 2 becomes a kernel of height 4
and width 1 with stride 1: the same sum, in another order. The norm is folded into the convolution (`kernels.fold`); its
bias, ReLU and max-pooling are one kernel in each direction.
"""
# ruff: noqa: ARG001 (functions that say shapes have all arguments of the operator)

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels.custom_op import channels_last, custom_op, empty, plain_gradients
from domainwise.kernels.fold import DTYPE, foldable, folded
from domainwise.kernels.registry import accelerates

BLOCK = 8
"""Windows of a row that a program of the pooling handles at once."""
PROGRAMS = 4224
"""How many programs share the pooling's backward pass at most: 32 for each multiprocessor of a large GPU."""


def _applies(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> bool:
    return foldable("resnet_stem", x, conv, norm)


@accelerates("resnet_stem", when=_applies)
def resnet_stem(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """max_pool(relu(norm(conv(x)))) of a 7x7 convolution with stride 2 and a 3x3 pool with stride 2."""
    weight, bias = folded(conv, norm)
    y = F.conv2d(torch.ops.domainwise.windows(x, DTYPE), window_kernel(weight))
    pooled: Tensor = torch.ops.domainwise.relu_pool(y, bias)[0]
    return pooled


def window_channels(inputs: int) -> int:
    """The channels of a window: four squares of 2x2 pixels, and zeros up to a power of two."""
    return 1 << (16 * inputs - 1).bit_length()


def plain_windows(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, 16 C and some zeros, ceil(H / 2) + 3, ceil(W / 2)] in channels_last, in plain PyTorch."""
    height, width = x.shape[2:]
    rows = _squares(F.pad(x, [4, 2 + width % 2, 4, 2 + height % 2]))
    columns = rows.shape[2] - 3
    return _filled(torch.cat([rows[:, :, i : i + columns] for i in range(4)], 3))


def window_kernel(weight: Tensor) -> Tensor:
    """[O, C, 7, 7] -> [O, ..., 4, 1]: what makes of windows what `weight` makes of the image, with stride 2."""
    return _filled(_squares(F.pad(weight, [1, 0, 1, 0])).reshape(len(weight), 4, 1, -1))


def _squares(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H / 2, W / 2, 4 C]."""
    n, channels, height, width = x.shape
    x = x.view(n, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(n, height // 2, width // 2, 4 * channels)


def _filled(x: Tensor) -> Tensor:
    """[N, H, W, 16 C] -> [N, window_channels(C), H, W]."""
    return F.pad(x, [0, window_channels(x.shape[3] // 16) - x.shape[3]]).permute(0, 3, 1, 2)


@custom_op("windows_triton.forward")
def windows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`plain_windows` in this dtype."""
    channels, height, width = x.shape[1:]
    return empty(x, window_channels(channels), (height + 1) // 2 + 3, (width + 1) // 2, dtype)


@custom_op("windows_triton.backward")
def windows_backward(dy: Tensor, channels: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """The gradient of the image."""
    return empty(dy, channels, height, width, dtype)


def _save_shape(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
    ctx.shape, ctx.dtype = inputs[0].shape[1:], inputs[0].dtype


def _windows_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None]:
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        x = dy.new_zeros(len(dy), *ctx.shape, requires_grad=True)
        return torch.autograd.grad(plain_windows(x), x, dy, create_graph=True)[0].to(ctx.dtype), None
    return torch.ops.domainwise.windows_backward(channels_last(dy), *ctx.shape, ctx.dtype), None


windows.register_autograd(_windows_gradients, setup_context=_save_shape)


def pool_parts(y: Tensor) -> int:
    """How many programs share the windows y in the backward pass."""
    return min(len(y) * y.shape[2] * -(-y.shape[3] // BLOCK), PROGRAMS)


@custom_op("pool_triton.forward")
def relu_pool(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """max_pool(relu(x + bias)), and which pixel of each window it is, for the backward pass."""
    y = empty(x, x.shape[1], (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2)
    return y, torch.empty_like(y, dtype=torch.uint8)


@custom_op("pool_triton.backward")
def relu_pool_backward(dy: Tensor, winner: Tensor, height: int, width: int, summed: bool) -> tuple[Tensor, Tensor]:
    """The gradient of x, and, if wanted, sums of the bias's gradient over parts of the windows [parts, C]."""
    sums = dy.new_empty(pool_parts(dy) if summed else 0, dy.shape[1], dtype=torch.float32)
    return empty(dy, dy.shape[1], height, width), sums


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


def _gradients(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
    x, bias, winner = ctx.saved_tensors
    for_bias = ctx.needs_input_grad[1]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again

        def plain(x: Tensor, bias: Tensor) -> Tensor:
            return F.max_pool2d(F.relu(x + bias.to(x.dtype)[:, None, None]), 3, stride=2, padding=1)

        return tuple(plain_gradients(plain, (x, bias), dy))
    dx, sums = torch.ops.domainwise.relu_pool_backward(channels_last(dy), winner, *x.shape[2:], for_bias)
    return dx, sums.sum(0).to(bias.dtype) if for_bias else None


relu_pool.register_autograd(_gradients, setup_context=_save)
