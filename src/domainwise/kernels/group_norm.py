"""ReLU, then GroupNorm, by our own kernels where PyTorch's are slow: on GPUs, and on CPUs for small groups in bf16."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

TRITON = find_spec("triton") is not None
BLOCK_CHANNELS = 32
"""Channels that one program of the kernel handles; groups must not cross its border."""


def relu_group_norm(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(relu(x)), which may overwrite x; `norm` is a GroupNorm."""
    assert isinstance(norm, nn.GroupNorm)
    on_gpu = TRITON and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and fits(norm)
    if on_gpu or (x.is_cpu and x.dtype == torch.bfloat16 and narrow(norm)):
        fused: Tensor = torch.ops.domainwise.relu_group_norm(x, norm.weight, norm.bias, norm.num_groups, norm.eps)[0]
        return fused
    return norm(F.relu(x, inplace=True))


def relu_group_norm_mean(x: Tensor, norm: nn.Module) -> Tensor:
    """The mean over pixels of norm(relu(x)), [N, C], which may overwrite x.

    In bf16 on a CPU it is found from sums over pixels alone: nothing is normalised pixel by pixel.
    """
    if not (x.is_cpu and x.dtype == torch.bfloat16):
        y = relu_group_norm(x, norm)
        return y.mean(dim=(2, 3), dtype=torch.promote_types(y.dtype, torch.float32))
    assert isinstance(norm, nn.GroupNorm)
    sums: Tensor = Moments.apply(F.relu(x, inplace=True).permute(0, 2, 3, 1))  # type: ignore[no-untyped-call]
    first, second = sums.unflatten(2, (norm.num_groups, -1)) / (x.shape[2] * x.shape[3])
    mean = first.mean(2, keepdim=True)
    variance = (second.mean(2, keepdim=True) - mean.square()).clamp_min(0)
    z = (first - mean) * torch.rsqrt(variance + norm.eps)
    return z.flatten(1) * norm.weight + norm.bias


class Moments(torch.autograd.Function):
    """Sums over pixels of r [N, H, W, C] and of its squares, [2, N, C], in float32; the gradient takes one pass."""

    @staticmethod
    def forward(ctx: Any, r: Tensor) -> Tensor:
        ctx.save_for_backward(r)
        wide = torch.promote_types(r.dtype, torch.float32)
        # in two steps: sums of bf16 are rounded to bf16, and errors of many small ones cancel out
        return torch.stack([t.sum(1).sum(1, dtype=wide) for t in (r, r * r)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (r,) = ctx.saved_tensors
        first, second = gradients[0].to(r.dtype)[:, :, None, None]
        return torch.addcmul(first, r, second, value=2)


def fits(norm: nn.GroupNorm) -> bool:
    """Whether the kernel can do it: whole groups of a power of two of channels in every block."""
    per_group = norm.num_channels // norm.num_groups
    return norm.affine and norm.num_channels % BLOCK_CHANNELS == 0 and per_group in (1, 2, 4, 8, 16, 32)


def narrow(norm: nn.GroupNorm) -> bool:
    """Whether a group of a pixel does not fill a vector register of a CPU that has bf16: 16 numbers of float32."""
    return norm.affine and norm.num_channels // norm.num_groups < 16


def kernels(device: str) -> ModuleType:
    """Those for this type of device."""
    return import_module(f"domainwise.kernels.group_norm_{'cpu' if device == 'cpu' else 'triton'}")


@library.custom_op("domainwise::relu_group_norm", mutates_args=())
def _forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The result in channels_last and x's dtype, and what the backward pass needs: means and 1 / deviations [N, G]."""
    return kernels(x.device.type).forward(x, weight, bias, groups, eps)


@_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
    statistics = x.new_empty(len(x), groups, dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.channels_last), statistics, torch.empty_like(statistics)


@library.custom_op("domainwise::relu_group_norm_backward", mutates_args=())
def _backward(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, and the gradients of bias and weight as the two rows of a tensor."""
    return kernels(x.device.type).backward(dy, x, weight, mean, scale)


@_backward.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(x, memory_format=torch.channels_last), weight.new_empty(2, len(weight))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, ctx.groups, ctx.eps = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, bias, *output[1:])


def _gradients(ctx: Any, dy: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, scale = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated again: by PyTorch's own formulas
        y = F.group_norm(F.relu(x), ctx.groups, weight, bias, ctx.eps).to(dy.dtype)
        wanted = [tensor for tensor in (x, weight, bias) if tensor.requires_grad]
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
        return *(next(found) if tensor.requires_grad else None for tensor in (x, weight, bias)), None, None
    dx, (dbias, dweight) = torch.ops.domainwise.relu_group_norm_backward(dy, x, weight, mean, scale)
    return dx, dweight, dbias, None, None


_forward.register_autograd(_gradients, setup_context=_save)
