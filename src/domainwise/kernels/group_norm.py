"""Bias, ReLU, then GroupNorm, of what a convolution gives: one kernel in each direction."""
# ruff: noqa: ARG001 (functions that say shapes have all arguments of the operator)

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels.custom_op import custom_op, plain_gradients

BLOCK_CHANNELS = 32
"""Channels that one program of the kernel handles; groups must not cross its border."""


def supported(norm: nn.GroupNorm) -> bool:
    """Whether the kernel can compute it: whole groups of a power of two of channels in every block."""
    per_group = norm.num_channels // norm.num_groups
    return norm.affine and norm.num_channels % BLOCK_CHANNELS == 0 and per_group in (1, 2, 4, 8, 16, 32)


@custom_op("group_norm_triton.forward")
def relu_group_norm(
    x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, pooled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y = norm(relu(x + shift)) in channels_last and x's dtype, means and 1 / deviations [N, G] of relu(x + shift).

    If `pooled`, y is the mean over the pixels instead, [N, C] in float32.
    """
    statistics = x.new_empty(len(x), groups, dtype=torch.float32)
    pool = x.new_empty(x.shape[:2], dtype=torch.float32)
    y = pool if pooled else torch.empty_like(x, memory_format=torch.channels_last)
    return y, statistics, torch.empty_like(statistics)


@custom_op("group_norm_triton.backward")
def relu_group_norm_backward(
    dy: Tensor, x: Tensor, shift: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, pooled: bool, wanted: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of shift, weight and bias as the rows of a tensor, if they are wanted."""
    sums = weight.new_empty((3, len(weight)) if wanted else 0, dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.channels_last), sums


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.groups, ctx.eps, ctx.pooled = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[1:])


def _gradients(ctx: Any, dy: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    x, shift, weight, bias, mean, scale = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated again

        def plain(x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            y = F.group_norm(F.relu(x + shift.view(-1, 1, 1)), ctx.groups, weight, bias, ctx.eps)
            return (y.mean((2, 3)) if ctx.pooled else y).to(dy.dtype)

        return *plain_gradients(plain, (x, shift, weight, bias), dy), None, None, None
    wanted = any(ctx.needs_input_grad[1:4])
    dx, sums = torch.ops.domainwise.relu_group_norm_backward(dy, x, shift, weight, mean, scale, ctx.pooled, wanted)
    return dx, *(sums.unbind(0) if wanted else (None, None, None)), None, None, None


relu_group_norm.register_autograd(_gradients, setup_context=_save)
