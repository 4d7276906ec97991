"""The MNIST CNN: bias, ReLU and GroupNorm of a layer in one kernel, with the first convolution and the last pooling."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels import first_layer, group_norm
from domainwise.kernels.registry import accelerates, hooked, on_gpu

MULTIPLE, FEW_IMAGES = 16, 64
"""cuDNN is quick, in bf16, with multiples of this many images, and as quick with others if they are few."""


def _layers(network: nn.Module) -> list[tuple[nn.Conv2d, nn.GroupNorm]]:
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in network.modules() if isinstance(module, nn.GroupNorm)]
    return list(zip(convolutions, norms, strict=True))


def _applies(network: nn.Module, x: Tensor) -> bool:
    if not on_gpu(x) or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    layers = _layers(network)
    supported = all(conv.bias is not None and group_norm.supported(norm) for conv, norm in layers)
    return supported and not hooked("group_norm_convnet", (module for layer in layers for module in layer))


@accelerates("group_norm_convnet", when=_applies)
def group_norm_convnet(network: nn.Module, x: Tensor) -> Tensor:
    """x <- norm(relu(conv(x))) for each layer, and the mean over the pixels."""
    images, layers = len(x), _layers(network)
    x = padded(x)
    for conv, norm in layers:
        x = conv_relu_group_norm(x, conv, norm, pool=norm is layers[-1][1])
    return x[:images]


def conv_relu_group_norm(x: Tensor, conv: nn.Conv2d, norm: nn.GroupNorm, *, pool: bool = False) -> Tensor:
    """norm(relu(conv(x))), or its mean over the pixels."""
    affine = (conv.bias, norm.weight, norm.bias, norm.num_groups, norm.eps)
    if first_layer.supported(x, conv, norm) and not pool:
        dtype = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else x.dtype
        kept = torch.is_grad_enabled()
        first: Tensor = torch.ops.domainwise.first_layer(x, conv.weight, *affine, dtype, kept)[0]
        return first
    convolved = conv._conv_forward(x, conv.weight, None)
    later: Tensor = torch.ops.domainwise.relu_group_norm(convolved, *affine, pool)[0]
    return later


def padded(x: Tensor) -> Tensor:
    """The images and, in bf16 on a GPU, as many empty ones as make their number a multiple of `MULTIPLE`.

    With others cuDNN takes up to five times as long for a strided convolution's gradient of its input.
    """
    missing = -len(x) % MULTIPLE
    if not missing or len(x) <= FEW_IMAGES or not torch.is_autocast_enabled(x.device.type):
        return x
    return F.pad(x, (0, 0, 0, 0, 0, 0, 0, missing))
