"""A layer of the MNIST CNN, by our kernels where they can, else by PyTorch's."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels import first_layer, group_norm, group_norm_bf16

WHOLE, FEW = 16, 64
"""cuDNN is quick, in bf16, with multiples of this many images, and as quick with others if they are few."""


def conv_relu_group_norm(x: Tensor, convolution: nn.Conv2d, norm: nn.GroupNorm, *, pool: bool = False) -> Tensor:
    """norm(relu(convolution(x))), or its mean over the pixels."""
    if watched(convolution, norm):
        return _plain(convolution(x), norm, pool)
    by_triton = group_norm.TRITON and x.is_cuda and convolution.bias is not None and group_norm.fits(norm)
    if not by_triton or x.dtype not in (torch.float32, torch.bfloat16):
        return _elsewhere(convolution(x), norm, pool)
    affine = (convolution.bias, norm.weight, norm.bias, norm.num_groups, norm.eps)
    if first_layer.fits(x, convolution, norm) and not pool:
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cuda") else x.dtype
        kept = torch.is_grad_enabled()
        first: Tensor = torch.ops.domainwise.first_layer(x, convolution.weight, *affine, dtype, kept)[0]
        return first
    convolved = convolution._conv_forward(x, convolution.weight, None)
    later: Tensor = torch.ops.domainwise.relu_group_norm(convolved, *affine, pool)[0]
    return later


def whole(x: Tensor) -> Tensor:
    """The images and, in bf16 on a GPU, as many empty ones as make their number a whole one.

    With others cuDNN takes up to five times as long for a strided convolution's gradient of its input.
    """
    missing = -len(x) % WHOLE
    if not missing or len(x) <= FEW or not x.is_cuda or not torch.is_autocast_enabled("cuda"):
        return x
    return F.pad(x, (0, 0, 0, 0, 0, 0, 0, missing))


def watched(*modules: nn.Module) -> bool:
    """Whether somebody wants to see what a layer puts out."""
    return any(module._forward_hooks for module in modules)


def _elsewhere(x: Tensor, norm: nn.GroupNorm, pool: bool) -> Tensor:
    if x.is_cpu and x.dtype == torch.bfloat16:
        return (group_norm_bf16.relu_group_norm_mean if pool else group_norm_bf16.relu_group_norm)(x, norm)
    return _plain(x, norm, pool)


def _plain(x: Tensor, norm: nn.GroupNorm, pool: bool) -> Tensor:
    y: Tensor = norm(F.relu(x, inplace=True))
    return y.mean(dim=(2, 3), dtype=torch.promote_types(y.dtype, torch.float32)) if pool else y
