"""A 3x3 convolution of few channels, bias, ReLU and GroupNorm at once: libraries take long over images of 1 to 3."""

from typing import Any

import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

from domainwise.kernels import group_norm


def fits(image: Tensor, convolution: nn.Conv2d, norm: nn.GroupNorm) -> bool:
    """Whether the kernels can do it: at most three channels of float32, 3x3, each pixel."""
    simple = (convolution.kernel_size, convolution.stride, convolution.padding) == ((3, 3), (1, 1), (1, 1))
    plain = convolution.groups == 1 and convolution.dilation == (1, 1) and convolution.bias is not None
    return image.dtype == torch.float32 and image.shape[1] <= 3 and simple and plain and group_norm.fits(norm)


@library.custom_op("domainwise::first_layer", mutates_args=())
def _forward(
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
    from domainwise.kernels import first_layer_triton

    return first_layer_triton.forward(image, kernel, shift, weight, bias, groups, eps, dtype, kept)


@_forward.register_fake
def _(
    image: Tensor,
    kernel: Tensor,
    shift: Tensor,  # noqa: ARG001
    weight: Tensor,  # noqa: ARG001
    bias: Tensor,  # noqa: ARG001
    groups: int,
    eps: float,  # noqa: ARG001
    dtype: torch.dtype,
    kept: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    statistics = image.new_empty(len(image), groups)
    shape = (len(image), len(kernel), *image.shape[2:])
    y = torch.empty(shape, dtype=dtype, device=image.device, memory_format=torch.channels_last)
    return y, torch.empty_like(y) if kept else y.new_empty(0), statistics, torch.empty_like(statistics)


@library.custom_op("domainwise::first_layer_backward", mutates_args=())
def _backward(
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
    from domainwise.kernels import first_layer_triton

    return first_layer_triton.backward(dy, r, image, kernel, weight, mean, scale, image_wanted, wanted)


@_backward.register_fake
def _(
    dy: Tensor,  # noqa: ARG001
    r: Tensor,  # noqa: ARG001
    image: Tensor,
    kernel: Tensor,
    weight: Tensor,  # noqa: ARG001
    mean: Tensor,  # noqa: ARG001
    scale: Tensor,  # noqa: ARG001
    image_wanted: bool,
    wanted: bool,
) -> tuple[Tensor, Tensor]:
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

        def same(image: Tensor, kernel: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            x = F.conv2d(image, kernel, shift, padding=1)
            return group_norm.plain(x, weight, bias, groups=ctx.groups, eps=ctx.eps)

        return *group_norm.again(same, tuple(tensors), dy), None, None, None, None
    image_wanted, wanted = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:5])
    dimage, sums = torch.ops.domainwise.first_layer_backward(
        dy, r, image, kernel, weight, mean, scale, image_wanted, wanted
    )
    slopes: tuple[Tensor | None, ...] = (None, None, None, None)
    if wanted:
        slopes = (sums[3:].t().reshape(kernel.shape), sums[0], sums[1], sums[2])
    return dimage if image_wanted else None, *slopes, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
