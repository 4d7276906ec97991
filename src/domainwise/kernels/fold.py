"""A frozen BatchNorm folded into the convolution before it.

A norm with fixed statistics is linear, so it is part of the convolution: with a = gamma / sqrt(variance + eps)

    norm(conv(x, W)) = conv(x, a W) + (beta - mean a)

In one kernel for each layer and direction, that also changes the dtype. Every step folds, since every step changes W,
gamma and beta.
"""
# ruff: noqa: ARG001 (functions that say shapes have all arguments of the operator)

from typing import Any

import torch
from torch import Tensor, nn

from domainwise.kernels.custom_op import custom_op, plain_gradients
from domainwise.kernels.registry import hooked, on_gpu

DTYPE = torch.bfloat16
"""What folded layers compute in. In tf32 gradients of folded layers are less exact than plain ones."""


def foldable(name: str, x: Tensor, *layers: nn.Module) -> bool:
    """Whether operation `name` of x may fold these layers' norms: in bf16 on a GPU, with frozen norms and no hooks."""
    device = x.device.type
    if not on_gpu(x) or not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) != DTYPE:
        return False
    modules = [module for layer in layers for module in layer.modules()]
    learning = any(module.training and isinstance(module, nn.BatchNorm2d) for module in modules)
    return not learning and not hooked(name, modules)


def folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The weights and the bias, in bf16, of a convolution that does what both do."""
    given = conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var
    weight_and_bias: tuple[Tensor, Tensor] = torch.ops.domainwise.fold(*given, norm.eps, DTYPE)
    return weight_and_bias


def plain_fold(
    weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The operator `fold` in plain PyTorch."""
    slope = gamma * torch.rsqrt(variance + eps)
    return (weight * slope[:, None, None, None]).to(dtype), (beta - mean * slope).to(dtype)


@custom_op("fold_triton.forward")
def fold(
    weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The weights and the bias of the folded convolution, in this dtype."""
    return torch.empty_like(weight, dtype=dtype, memory_format=torch.channels_last), torch.empty_like(beta, dtype=dtype)


@custom_op("fold_triton.backward")
def fold_backward(
    dfolded: Tensor, dbias: Tensor, weight: Tensor, gamma: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of weight, gamma and beta."""
    dweight = torch.empty_like(weight, memory_format=torch.channels_last)
    return dweight, torch.empty_like(gamma), torch.empty_like(gamma)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.eps, ctx.dtype = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, dfolded: Tensor, dbias: Tensor) -> tuple[Tensor | None, ...]:
    weight, gamma, beta, mean, variance = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated again

        def plain(weight: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
            return plain_fold(weight, gamma, beta, mean, variance, ctx.eps, ctx.dtype)

        gradients = plain_gradients(plain, (weight, gamma, beta), (dfolded, dbias))
    else:
        gradients = torch.ops.domainwise.fold_backward(dfolded, dbias, weight, gamma, mean, variance, ctx.eps)
    return *gradients, None, None, None, None


fold.register_autograd(_gradients, setup_context=_save)
