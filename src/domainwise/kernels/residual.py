"""Residual blocks one after another, x <- relu(x + layers(x)), as one operation on GPUs, for the sake of its gradient.

What reaches a block's input from its layers and from its shortcut has to be added, masked by the ReLU before it and
summed over pixels for the bias there. Known to one operation, all of it happens where the layers' part is computed, and
gradients are written once. The forward pass is that of `kernels.convolution`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

from domainwise.kernels.convolution import convolved, folding, laid_out, parts, product_parts
from domainwise.kernels.fold import fold


def residual_blocks(x: Tensor, blocks: Sequence[nn.Module]) -> Tensor:
    """What the blocks make of x; they change no shape, and their `layers()` are as many convolutions and norms each."""
    dtype = folding(x, *blocks) if torch.is_grad_enabled() else None  # else it would keep all for nothing
    if dtype is None or not blocks:
        for block in blocks:
            x = block(x)
        return x
    layers: list[list[tuple[nn.Conv2d, nn.BatchNorm2d]]] = [block.layers() for block in blocks]  # type: ignore[operator]
    folded = [fold(conv, norm, dtype) for block in layers for conv, norm in block]
    weights, biases = [weight for weight, _ in folded], [bias for _, bias in folded]
    ys: list[Tensor] = torch.ops.domainwise.residual(x.to(dtype), weights, biases, len(layers[0]))
    return ys[-1]


@library.custom_op("domainwise::residual", mutates_args=())
def _forward(x: Tensor, weights: list[Tensor], biases: list[Tensor], depth: int) -> list[Tensor]:
    """What every layer puts out, in channels_last; `depth` layers are a block."""
    ys: list[Tensor] = []
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if number % depth == 0:
            start = x
        x = convolved(x, weight, bias, start if number % depth == depth - 1 else None, 1, weight.shape[2] // 2)
        ys.append(x)
    return ys


@_forward.register_fake
def _(x: Tensor, weights: list[Tensor], biases: list[Tensor], depth: int) -> list[Tensor]:  # noqa: ARG001
    shapes = [(len(x), len(weight), *x.shape[2:]) for weight in weights]
    return [x.new_empty(shape).contiguous(memory_format=torch.channels_last) for shape in shapes]


@library.custom_op("domainwise::residual_backward", mutates_args=())
def _backward(
    dy: Tensor, x: Tensor, weights: list[Tensor], ys: list[Tensor], depth: int, learned: bool
) -> list[Tensor]:
    """The gradient of x; and, if wanted, those of the weights, and of the biases as sums over parts of the pixels."""
    from domainwise.kernels import product_triton, relu_triton

    inputs = [x.contiguous(memory_format=torch.channels_last), *ys[:-1]]
    dz, sums = relu_triton.backward(dy, ys[-1], summed=learned)
    dweights, all_sums = [], []
    for number in reversed(range(len(weights))):
        if number % depth == depth - 1:
            around = dz
        beside = around if number % depth == 0 else None
        y, weight, padding = inputs[number], weights[number], [weights[number].shape[2] // 2] * 2
        given = dz, y, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1
        if learned:
            all_sums.append(sums)
            dweights.append(torch.ops.aten.convolution_backward(*given, [False, True, False])[1])
        summed = learned and number > 0
        if weight.shape[2] == 1:
            dz, sums = product_triton.backward(dz, weight, y if number else None, beside, summed=summed)
        else:
            dx = torch.ops.aten.convolution_backward(*given, [True, False, False])[0]
            dz, sums = relu_triton.backward(dx, y, beside, summed=summed) if number else (dx + beside, sums)
    return [dz, *reversed(dweights), *reversed(all_sums)]


@_backward.register_fake
def _(dy: Tensor, x: Tensor, weights: list[Tensor], ys: list[Tensor], depth: int, learned: bool) -> list[Tensor]:  # noqa: ARG001
    made = [torch.empty_like(x, memory_format=torch.channels_last)]
    if not learned:
        return made
    made += [torch.empty_like(weight, memory_format=torch.channels_last) for weight in weights]
    for y, after in zip(ys, [*weights[1:], None], strict=True):
        number = product_parts(y, after) if after is not None and after.shape[2] == 1 else parts(y)[0]
        made.append(y.new_empty(number, y.shape[1], dtype=torch.float32))
    return made


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weights, biases, ctx.depth = inputs
    ctx.set_materialize_grads(False)
    ctx.layers = len(weights)
    ctx.save_for_backward(x, *weights, *biases, *output)


def _gradients(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    """Only the last layer's result has a gradient."""
    x, *others = ctx.saved_tensors
    weights, biases, ys = (others[i * ctx.layers : (i + 1) * ctx.layers] for i in range(3))
    if torch.is_grad_enabled():  # the gradient is to be differentiated again: by PyTorch's own formulas
        wanted = [tensor for tensor in (x, *weights, *biases) if tensor.requires_grad]
        y = _plain(x, weights, biases, ctx.depth)
        found = iter(torch.autograd.grad(y, wanted, grads[-1], create_graph=True))
        dx, *others = [next(found) if tensor.requires_grad else None for tensor in (x, *weights, *biases)]
        return dx, others[: ctx.layers], others[ctx.layers :], None
    dy, learned = laid_out(grads[-1]), any(ctx.needs_input_grad[1])
    dx, *others = torch.ops.domainwise.residual_backward(dy, x, weights, ys, ctx.depth, learned)
    if not learned:
        return dx, [None] * ctx.layers, [None] * ctx.layers, None
    return dx, others[: ctx.layers], [sums.sum(0).to(x.dtype) for sums in others[ctx.layers :]], None


def _plain(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], depth: int) -> Tensor:
    """The last layer's result in plain PyTorch."""
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if number % depth == 0:
            start = x
        x = F.conv2d(x, weight, bias, padding=weight.shape[2] // 2)
        x = F.relu(x + start if number % depth == depth - 1 else x)
    return x


_forward.register_autograd(_gradients, setup_context=_save)
