"""A frozen BatchNorm folded into the convolution before it.

A norm with fixed statistics is linear, so it is part of the convolution: with a = gamma / sqrt(variance + eps)

    norm(conv(x, W)) = conv(x, a W) + (beta - mean a)

In one kernel for each layer and direction, that also changes the dtype. Every step folds, since every step changes W,
gamma and beta.
"""

from typing import Any

import torch
from torch import Tensor, library, nn


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The weights and the bias, in this dtype, of a convolution that does what both do."""
    given = conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var
    folded: tuple[Tensor, Tensor] = torch.ops.domainwise.fold(*given, norm.eps, dtype)
    return folded


def plain(
    weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The same in plain PyTorch."""
    slope = gamma * torch.rsqrt(variance + eps)
    return (weight * slope[:, None, None, None]).to(dtype), (beta - mean * slope).to(dtype)


@library.custom_op("domainwise::fold", mutates_args=())
def _forward(
    weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    from domainwise.kernels import fold_triton

    return fold_triton.forward(weight, gamma, beta, mean, variance, eps, dtype)


@_forward.register_fake
def _(
    weight: Tensor,
    gamma: Tensor,  # noqa: ARG001
    beta: Tensor,
    mean: Tensor,  # noqa: ARG001
    variance: Tensor,  # noqa: ARG001
    eps: float,  # noqa: ARG001
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(weight, dtype=dtype, memory_format=torch.channels_last), torch.empty_like(beta, dtype=dtype)


@library.custom_op("domainwise::fold_backward", mutates_args=())
def _backward(
    dfolded: Tensor, dbias: Tensor, weight: Tensor, gamma: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of weight, gamma and beta."""
    from domainwise.kernels import fold_triton

    return fold_triton.backward(dfolded, dbias, weight, gamma, mean, variance, eps)


@_backward.register_fake
def _(
    dfolded: Tensor,  # noqa: ARG001
    dbias: Tensor,  # noqa: ARG001
    weight: Tensor,
    gamma: Tensor,
    mean: Tensor,  # noqa: ARG001
    variance: Tensor,  # noqa: ARG001
    eps: float,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    dweight = torch.empty_like(weight, memory_format=torch.channels_last)
    return dweight, torch.empty_like(gamma), torch.empty_like(gamma)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG001
    *tensors, ctx.eps, ctx.dtype = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, dfolded: Tensor, dbias: Tensor) -> tuple[Tensor | None, ...]:
    weight, gamma, beta, mean, variance = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated again: by PyTorch's own formulas
        folded = plain(weight, gamma, beta, mean, variance, ctx.eps, ctx.dtype)
        learned = [tensor for tensor in (weight, gamma, beta) if tensor.requires_grad]
        found = iter(torch.autograd.grad(folded, learned, (dfolded, dbias), create_graph=True, allow_unused=True))
        own = tuple(next(found) if tensor.requires_grad else None for tensor in (weight, gamma, beta))
    else:
        own = torch.ops.domainwise.fold_backward(dfolded, dbias, weight, gamma, mean, variance, ctx.eps)
    return *own, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
