"""Convolutions with bias, shortcut and ReLU, alone and in residual blocks, against float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, library
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from domainwise.engine.execution.isolation import arithmetic
from kernel_problems import CHECKS, FLOAT32, GPU, close, gradients, multiplied_bf16, needs_gpu, needs_triton, numbers

pytestmark = [pytest.mark.gpu] if GPU else []
LAYERS = [
    # inputs [N, C, H, W], outputs, kernel, stride, with a shortcut
    ((2, 32, 7, 5), 64, 3, 1, True),
    ((3, 64, 8, 9), 32, 3, 2, False),
    ((2, 32, 5, 5), 96, 1, 1, True),
    ((2, 64, 9, 6), 128, 1, 2, False),
    ((1, 32, 3, 3), 256, 1, 1, False),
]


def problem(layer: Any, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """x, weight, bias and perhaps the shortcut's value; and the gradient of y."""
    shape, outputs, size, stride, with_shortcut = layer
    weight = numbers(outputs, shape[1], size, size, dtype=dtype) / (shape[1] ** 0.5 * size)
    given = [numbers(*shape, dtype=dtype), weight, numbers(outputs, dtype=dtype)]
    y = F.conv2d(given[0], weight, stride=stride, padding=size // 2)
    if with_shortcut:
        given.append(numbers(*y.shape, dtype=dtype))
    return given, numbers(*y.shape, dtype=dtype).flip(0)


def expected(layer: Any, x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None = None) -> Tensor:
    y = F.conv2d(x, weight, bias, stride=layer[3], padding=layer[2] // 2)
    return F.relu(y if beside is None else y + beside)


def fused(layer: Any, x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None = None) -> Tensor:
    return torch.ops.domainwise.conv_relu(x, weight, bias, beside, layer[3], layer[2] // 2)


def the_same_side(y: Tensor, exact: Tensor, dy: Tensor) -> Tensor:
    """The gradient of y without the few pixels that rounding has moved over ReLU's edge."""
    return torch.where((y > 0) == (exact > 0), dy, 0)


@needs_triton
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, FLOAT32), multiplied_bf16(1e-2)])
def test_convolution_and_its_gradients(layer: Any, dtype: torch.dtype, tolerance: float) -> None:
    given, dy = problem(layer, dtype)
    y, exact = fused(layer, *given), expected(layer, *(t.double() for t in given))
    assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
    dy = the_same_side(y, exact, dy)
    ours = gradients(lambda *inputs: fused(layer, *inputs), given, dy)
    theirs = gradients(lambda *inputs: expected(layer, *inputs), given, dy, torch.float64)
    for found, wanted in zip(ours, theirs, strict=True):
        assert close(found, wanted, tolerance)


def asked_for(y: Tensor, x: Tensor, dy: Tensor) -> list[tuple[str, Any]]:
    """The operations, and their arguments, of which the gradient of x is made."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((str(func), args))
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.autograd.grad(y, x, dy)
    return seen


@needs_triton
def test_constants_have_no_gradients() -> None:
    """As in an ascent, where the weights are constants: nothing is computed for them."""
    given, dy = problem(LAYERS[0], torch.float32)
    x = given[0].requires_grad_()
    seen = asked_for(fused(LAYERS[0], x, *given[1:]), x, dy)
    (relu,) = (args for name, args in seen if "relu_backward" in name)
    (conv,) = (args for name, args in seen if "convolution_backward" in name)
    assert relu[-1] is False and conv[-1] == [True, False, False]
    assert not any("sum" in name for name, _ in seen)


@needs_triton
@pytest.mark.parametrize("layer", LAYERS[:2])
def test_second_derivatives_are_those_of_plain_pytorch(layer: Any) -> None:
    given, dy = problem(layer, torch.float32)

    def penalty(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [t.to(dtype).detach().requires_grad_() for t in given]
        with arithmetic("fp32"):
            slope = torch.autograd.grad(function(layer, *inputs), inputs[0], dy.to(dtype), create_graph=True)[0]
            return torch.autograd.grad(slope.pow(3).sum(), inputs[1])

    for ours, theirs in zip(penalty(fused, torch.float32), penalty(expected, torch.float64), strict=True):
        assert close(ours, theirs, 1e-4)


RUNS = [
    # widths between the blocks and inside of them, kernels' sizes, blocks, and the images' height and width
    (64, (64, 64), (3, 3), 2, (5, 4)),
    (128, (32, 32, 128), (1, 3, 1), 3, (3, 5)),
    (32, (32,), (1,), 1, (9, 8)),
]


def a_run(run: Any, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """x, the weights and the biases; and the gradient of y."""
    width, widths, sizes, blocks, size = run
    x = numbers(2, width, *size, dtype=dtype)
    weights = []
    for number in range(blocks):
        for inputs, outputs, kernel in zip((width, *widths[:-1]), widths, sizes, strict=True):
            weight = numbers(outputs, inputs, kernel, kernel, dtype=dtype).roll(number, 0)
            weights.append(weight / (inputs**0.5 * kernel))
    return [x, *weights, *(numbers(len(w), dtype=dtype) / 4 for w in weights)], numbers(*x.shape, dtype=dtype).flip(0)


def fused_run(run: Any, x: Tensor, *others: Tensor) -> Tensor:
    half = len(others) // 2
    return torch.ops.domainwise.residual(x, list(others[:half]), list(others[half:]), len(run[1]))[-1]


def plain_run(run: Any, x: Tensor, *others: Tensor) -> Tensor:
    layers = list(zip(others[: len(others) // 2], others[len(others) // 2 :], strict=True))
    for first in range(0, len(layers), len(run[1])):
        y = x
        for weight, bias in layers[first : first + len(run[1]) - 1]:
            y = F.relu(F.conv2d(y, weight, bias, padding=weight.shape[2] // 2))
        weight, bias = layers[first + len(run[1]) - 1]
        x = F.relu(x + F.conv2d(y, weight, bias, padding=weight.shape[2] // 2))
    return x


@needs_triton
@pytest.mark.parametrize("run", RUNS)
def test_residual_blocks_and_their_gradients(run: Any) -> None:
    given, dy = a_run(run, torch.float32)
    ours = gradients(lambda *inputs: fused_run(run, *inputs), given, dy)
    theirs = gradients(lambda *inputs: plain_run(run, *inputs), given, dy, torch.float64)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)
    for found, wanted in zip(ours, theirs, strict=True):
        assert close(found, wanted, FLOAT32)


@needs_triton
@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS)
def test_residual_blocks_in_bf16_are_as_exact_as_plain_pytorch(run: Any) -> None:
    """By the norm of errors: single pixels of a rounded result may be on the other side of a ReLU's edge."""
    given, dy = a_run(run, torch.bfloat16)
    exact = gradients(lambda *inputs: plain_run(run, *inputs), given, dy, torch.float64)
    errors = []
    for function in (fused_run, plain_run):
        found = gradients(lambda *inputs, function=function: function(run, *inputs), given, dy)
        assert all(t.dtype == torch.bfloat16 for t in found)
        pairs = zip(found, exact, strict=True)
        errors.append([float((ours.double() - theirs).norm() / theirs.norm()) for ours, theirs in pairs])
    assert max(errors[0]) < 1.5 * max(errors[1]) and sum(errors[0]) < 1.3 * sum(errors[1])


@needs_triton
def test_residual_blocks_whose_weights_are_constants() -> None:
    (x, *others), dy = a_run(RUNS[1], torch.float32)
    ours = gradients(lambda x: fused_run(RUNS[1], x, *others), [x], dy)
    theirs = gradients(lambda x: plain_run(RUNS[1], x, *(t.double() for t in others)), [x], dy, torch.float64)
    assert close(ours[1], theirs[1], FLOAT32)
    x.requires_grad_()
    (asked,) = (args for name, args in asked_for(fused_run(RUNS[1], x, *others), x, dy) if "residual_backward" in name)
    assert asked[-1] is False


@needs_triton
@pytest.mark.parametrize("run", RUNS[:2])
def test_residual_blocks_twice_differentiated(run: Any) -> None:
    given, dy = a_run(run, torch.float32)

    def penalty(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [t.to(dtype).detach().requires_grad_() for t in given]
        with arithmetic("fp32"):
            slope = torch.autograd.grad(function(run, *inputs), inputs[0], dy.to(dtype), create_graph=True)[0]
            return torch.autograd.grad(slope.pow(3).sum(), inputs[1:3])

    for ours, theirs in zip(penalty(fused_run, torch.float32), penalty(plain_run, torch.float64), strict=True):
        assert close(ours, theirs, 1e-4)


@needs_triton
def test_the_operations_keep_what_torch_is_told_of_them() -> None:
    ops = torch.ops.domainwise
    for layer in LAYERS[:2]:
        given, dy = problem(layer, torch.float32)
        given = (*given, None)[:4]
        library.opcheck(ops.conv_relu, (*given, layer[3], layer[2] // 2), test_utils=CHECKS)
        for summed in (True, False):
            library.opcheck(ops.relu_backward, (dy, dy.roll(1), summed), test_utils=CHECKS)
    for run in RUNS:
        (x, *others), dy = a_run(run, torch.float32)
        weights, biases = others[: len(others) // 2], others[len(others) // 2 :]
        library.opcheck(ops.residual, (x, weights, biases, len(run[1])), test_utils=CHECKS)
        ys = ops.residual(x, weights, biases, len(run[1]))
        for learned in (True, False):
            library.opcheck(ops.residual_backward, (dy, x, weights, ys, len(run[1]), learned), test_utils=CHECKS)


@needs_triton
def test_a_convolution_shows_nan() -> None:
    x = torch.full((1, 32, 3, 3), torch.nan, device=numbers(1).device)
    assert torch.ops.domainwise.conv_relu(x, numbers(32, 32, 3, 3), numbers(32), None, 1, 1).isnan().all()
