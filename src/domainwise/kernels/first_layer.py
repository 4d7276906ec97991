"""A 3x3 convolution of few channels, bias, ReLU and GroupNorm at once: libraries take long over images of 1 to 3."""
# ruff: noqa: ARG001 (functions that say shapes have all arguments of the operator)

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels import group_norm
from domainwise.kernels.custom_op import custom_op, empty, plain_gradients


def supported(image: Tensor, conv: nn.Conv2d, norm: nn.GroupNorm) -> bool:
    """Whether the kernels can compute it: at most three channels of float32, 3x3, each pixel."""
    every_pixel = (conv.kernel_size, conv.stride, conv.padding) == ((3, 3), (1, 1), (1, 1))
    plain = conv.groups == 1 and conv.dilation == (1, 1) and conv.bias is not None
    small = image.dtype == torch.float32 and image.shape[1] <= 3
    return small and every_pixel and plain and group_norm.supported(norm)


@custom_op("first_layer_triton.forward")
def first_layer(
    image: Tensor,
    kernel: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    dtype: torch.dtype,
    kept: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y = norm(r) in channels_last and this dtype; for a backward pass r (if kept), means, 1 / deviations [N, G]."""
    statistics = image.new_empty(len(image), groups)
    y = empty(image, len(kernel), image.shape[2], image.shape[3], dtype)
    return y, torch.empty_like(y) if kept else y.new_empty(0), statistics, torch.empty_like(statistics)


@custom_op("first_layer_triton.backward")
def first_layer_backward(
    dy: Tensor,
    r: Tensor,
    image: Tensor,
    kernel: Tensor,
    weight: Tensor,
    mean: Tensor,
    scale: Tensor,
    image_wanted: bool,
    wanted: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient of the image, and those of shift, weight, bias and the kernel's taps as rows of a tensor."""
    sums = image.new_empty((3 + 9 * image.shape[1], len(kernel)) if wanted else 0)
    return torch.empty_like(image) if image_wanted else image.new_empty(0), sums


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.groups, ctx.eps, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[1:])


def _gradients(ctx: Any, dy: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    *tensors, r, mean, scale = ctx.saved_tensors
    if not r.numel():
        raise RuntimeError("the first layer was computed with kept=False: it has no gradient")
    image, kernel, _, weight, _ = tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated again

        def plain(image: Tensor, kernel: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            x = F.relu(F.conv2d(image, kernel, shift, padding=1))
            return F.group_norm(x, ctx.groups, weight, bias, ctx.eps).to(dy.dtype)

        return *plain_gradients(plain, tensors, dy), None, None, None, None
    image_wanted, wanted = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:5])
    dimage, sums = torch.ops.domainwise.first_layer_backward(
        dy, r, image, kernel, weight, mean, scale, image_wanted, wanted
    )
    slopes: tuple[Tensor | None, ...] = (None, None, None, None)
    if wanted:
        slopes = (sums[3:].t().reshape(kernel.shape), sums[0], sums[1], sums[2])
    return dimage if image_wanted else None, *slopes, None, None, None, None


first_layer.register_autograd(_gradients, setup_context=_save)
