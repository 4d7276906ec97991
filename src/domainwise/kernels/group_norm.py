"""Bias, ReLU, then GroupNorm, of what a convolution gives: one kernel in each direction where there is Triton."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

TRITON = find_spec("triton") is not None
BLOCK_CHANNELS = 32
"""Channels that one program of the kernel handles; groups must not cross its border."""


def fits(norm: nn.GroupNorm) -> bool:
    """Whether the kernel can do it: whole groups of a power of two of channels in every block."""
    per_group = norm.num_channels // norm.num_groups
    return norm.affine and norm.num_channels % BLOCK_CHANNELS == 0 and per_group in (1, 2, 4, 8, 16, 32)


@library.custom_op("domainwise::relu_group_norm", mutates_args=())
def _forward(
    x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, pooled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y = norm(relu(x + shift)) in channels_last and x's dtype, means and 1 / deviations [N, G] of relu(x + shift).

    If `pooled`, y is the mean over the pixels instead, [N, C] in float32.
    """
    from domainwise.kernels import group_norm_triton

    return group_norm_triton.forward(x, shift, weight, bias, groups, eps, pooled)


@_forward.register_fake
def _(
    x: Tensor,
    shift: Tensor,  # noqa: ARG001
    weight: Tensor,  # noqa: ARG001
    bias: Tensor,  # noqa: ARG001
    groups: int,
    eps: float,  # noqa: ARG001
    pooled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    statistics = x.new_empty(len(x), groups, dtype=torch.float32)
    pool = x.new_empty(x.shape[:2], dtype=torch.float32)
    y = pool if pooled else torch.empty_like(x, memory_format=torch.channels_last)
    return y, statistics, torch.empty_like(statistics)


@library.custom_op("domainwise::relu_group_norm_backward", mutates_args=())
def _backward(
    dy: Tensor, x: Tensor, shift: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, pooled: bool, wanted: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of shift, weight and bias as the rows of a tensor, if they are wanted."""
    from domainwise.kernels import group_norm_triton

    return group_norm_triton.backward(dy, x, shift, weight, mean, scale, pooled, wanted)


@_backward.register_fake
def _(
    dy: Tensor,  # noqa: ARG001
    x: Tensor,
    shift: Tensor,  # noqa: ARG001
    weight: Tensor,
    mean: Tensor,  # noqa: ARG001
    scale: Tensor,  # noqa: ARG001
    pooled: bool,  # noqa: ARG001
    wanted: bool,
) -> tuple[Tensor, Tensor]:
    sums = weight.new_empty((3, len(weight)) if wanted else 0, dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.channels_last), sums


def plain(x: Tensor, weight: Tensor, bias: Tensor, *, groups: int, eps: float) -> Tensor:
    """norm(relu(x)) by PyTorch's own operations, which can be differentiated again and again."""
    return F.group_norm(F.relu(x), groups, weight, bias, eps)


def again(function: Any, tensors: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients, themselves to be differentiated, of a function of tensors: nothing for those that want none."""
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    found = iter(torch.autograd.grad(function(*tensors).to(dy.dtype), wanted, dy, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in tensors)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.groups, ctx.eps, ctx.pooled = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[1:])


def _gradients(ctx: Any, dy: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    x, shift, weight, bias, mean, scale = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated again

        def same(x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            y = plain(x + shift.view(-1, 1, 1), weight, bias, groups=ctx.groups, eps=ctx.eps)
            return y.mean((2, 3)) if ctx.pooled else y

        return *again(same, (x, shift, weight, bias), dy), None, None, None
    wanted = any(ctx.needs_input_grad[1:4])
    dx, sums = torch.ops.domainwise.relu_group_norm_backward(dy, x, shift, weight, mean, scale, ctx.pooled, wanted)
    return dx, *(sums.unbind(0) if wanted else (None, None, None)), None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
