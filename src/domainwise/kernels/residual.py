"""Residual blocks as fused layers, and blocks one after another, x <- relu(x + layers(x)), as one operator.

The operator is for the sake of its gradient. What reaches a block's input from its layers and from its shortcut has to
be added, masked by the ReLU before it and summed over pixels for the bias there. Known to one operator, all of it
happens where the layers' part is computed, and gradients are written once. The forward pass is that of
`kernels.convolution`.
"""
# ruff: noqa: ARG001 (functions that say shapes have all arguments of the operator)

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.kernels.convolution import compute_conv_relu, conv_norm_relu, pixel_parts, product_parts
from domainwise.kernels.custom_op import channels_last, custom_op, plain_gradients
from domainwise.kernels.fold import DTYPE, foldable, folded
from domainwise.kernels.registry import accelerates


def layers(block: nn.Module) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """The convolutions of a residual block, each with its norm, in order; those of its shortcut are not among them."""
    convolutions = [module for module in block.children() if isinstance(module, nn.Conv2d)]
    norms = [module for module in block.children() if isinstance(module, nn.BatchNorm2d)]
    return list(zip(convolutions, norms, strict=True))


def _block_applies(block: nn.Module, x: Tensor) -> bool:
    return foldable("residual_block", x, *block.children())


@accelerates("residual_block", when=_block_applies)
def residual_block(block: nn.Module, x: Tensor) -> Tensor:
    """relu(layers(x) + downsample(x)); `downsample` is the identity, or a convolution and its norm."""
    *inner, last = layers(block)
    y = x
    for conv, norm in inner:
        y = conv_norm_relu(y, conv, norm)
    return conv_norm_relu(y, *last, (x, block.downsample))  # type: ignore[arg-type]


def _stage_applies(stage: nn.Sequential, x: Tensor) -> bool:
    """Only with gradients: without, the operator would keep every layer's result for nothing."""
    return torch.is_grad_enabled() and foldable("residual_stage", x, *stage)


@accelerates("residual_stage", when=_stage_applies)
def residual_stage(stage: nn.Sequential, x: Tensor) -> Tensor:
    """Blocks of as many layers each, of which only the first may change the shape."""
    blocks = list(stage)
    if not isinstance(blocks[0].downsample, nn.Identity):
        x = blocks.pop(0)(x)
    if not blocks:
        return x
    weights_and_biases = [folded(conv, norm) for block in blocks for conv, norm in layers(block)]
    weights, biases = [weight for weight, _ in weights_and_biases], [bias for _, bias in weights_and_biases]
    ys: list[Tensor] = torch.ops.domainwise.residual(x.to(DTYPE), weights, biases, len(layers(blocks[0])))
    return ys[-1]


def _forward(x: Tensor, weights: list[Tensor], biases: list[Tensor], depth: int) -> list[Tensor]:
    ys: list[Tensor] = []
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if number % depth == 0:
            start = x
        added = start if number % depth == depth - 1 else None
        x = compute_conv_relu(x, weight, bias, added, 1, weight.shape[2] // 2)
        ys.append(x)
    return ys


@custom_op(_forward)
def residual(x: Tensor, weights: list[Tensor], biases: list[Tensor], depth: int) -> list[Tensor]:
    """What every layer puts out, in channels_last; `depth` layers are a block."""
    shapes = [(len(x), len(weight), *x.shape[2:]) for weight in weights]
    return [channels_last(x.new_empty(shape)) for shape in shapes]


def _backward(
    dy: Tensor, x: Tensor, weights: list[Tensor], ys: list[Tensor], depth: int, learned: bool
) -> list[Tensor]:
    from domainwise.kernels import product_triton, relu_triton

    inputs = [channels_last(x), *ys[:-1]]
    dz, sums = relu_triton.backward(dy, ys[-1], learned)
    dweights, all_sums = [], []
    for number in reversed(range(len(weights))):
        if number % depth == depth - 1:
            around = dz
        added = around if number % depth == 0 else None
        y, weight, padding = inputs[number], weights[number], [weights[number].shape[2] // 2] * 2
        given = dz, y, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1
        if learned:
            all_sums.append(sums)
            dweights.append(torch.ops.aten.convolution_backward(*given, [False, True, False])[1])
        summed = learned and number > 0
        if weight.shape[2] == 1:
            dz, sums = product_triton.backward(dz, weight, y if number else None, added, summed=summed)
        else:
            dx = torch.ops.aten.convolution_backward(*given, [True, False, False])[0]
            dz, sums = relu_triton.backward(dx, y, summed, added) if number else (dx + added, sums)
    return [dz, *reversed(dweights), *reversed(all_sums)]


@custom_op(_backward)
def residual_backward(
    dy: Tensor, x: Tensor, weights: list[Tensor], ys: list[Tensor], depth: int, learned: bool
) -> list[Tensor]:
    """The gradient of x; and, if wanted, those of the weights, and of the biases as sums over parts of the pixels."""
    made = [torch.empty_like(x, memory_format=torch.channels_last)]
    if not learned:
        return made
    made += [torch.empty_like(weight, memory_format=torch.channels_last) for weight in weights]
    for y, after in zip(ys, [*weights[1:], None], strict=True):
        number = product_parts(y, after) if after is not None and after.shape[2] == 1 else pixel_parts(y)[0]
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
    if torch.is_grad_enabled():  # the gradient is to be differentiated again

        def plain(x: Tensor, *others: Tensor) -> Tensor:
            return _plain(x, others[: ctx.layers], others[ctx.layers :], ctx.depth)

        dx, *others = plain_gradients(plain, (x, *weights, *biases), grads[-1])
        return dx, others[: ctx.layers], others[ctx.layers :], None
    dy, learned = channels_last(grads[-1]), any(ctx.needs_input_grad[1])
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


residual.register_autograd(_gradients, setup_context=_save)
