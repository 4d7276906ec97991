"""ReLU, then GroupNorm, in bf16 on a CPU: PyTorch's own are slow for small groups, and for the mean over pixels."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels import group_norm, group_norm_cpu


def narrow(norm: nn.GroupNorm) -> bool:
    """Whether a group of a pixel does not fill a vector register of a CPU that has bf16: 16 numbers of float32."""
    return norm.affine and norm.num_channels // norm.num_groups < 16


def relu_group_norm(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """norm(relu(x)), which may overwrite x."""
    if not narrow(norm):
        return norm(F.relu(x, inplace=True))
    y: Tensor = Rows.apply(x, norm.weight, norm.bias, norm.num_groups, norm.eps)  # type: ignore[no-untyped-call]
    return y


def relu_group_norm_mean(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """The mean over pixels of norm(relu(x)), [N, C].

    It is found from sums over pixels alone: nothing is normalised pixel by pixel.
    """
    sums: Tensor = Moments.apply(x)  # type: ignore[no-untyped-call]
    first, second = sums.unflatten(2, (norm.num_groups, -1)) / (x.shape[2] * x.shape[3])
    mean = first.mean(2, keepdim=True)
    variance = (second.mean(2, keepdim=True) - mean.square()).clamp_min(0)
    z = (first - mean) * torch.rsqrt(variance + norm.eps)
    return z.flatten(1) * norm.weight + norm.bias


class Rows(torch.autograd.Function):
    """norm(relu(x)) by whole rows of channels; a second derivative is taken by PyTorch's own formulas."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        y, *statistics = group_norm_cpu.forward(x, weight, bias, groups, eps)
        ctx.groups, ctx.eps = groups, eps
        ctx.save_for_backward(x, weight, bias, *statistics)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(group_norm.plain, groups=ctx.groups, eps=ctx.eps)
            return *group_norm.again(plain, (x, weight, bias), gradients[0]), None, None
        dx, (dbias, dweight) = group_norm_cpu.backward(gradients[0], x, weight, mean, scale)
        return dx, dweight, dbias, None, None


class Moments(torch.autograd.Function):
    """Sums over pixels of relu(x) and of its squares, [2, N, C], in float32 if x is not wider."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return group_norm_cpu.moments(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        first, second = gradients[0].to(x.dtype)[..., None, None]
        slopes: Tensor = torch.ops.aten.threshold_backward(torch.addcmul(first, x, second, value=2), x, 0)
        return slopes
