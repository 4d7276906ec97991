"""Our kernels for bf16 on a CPU against float64."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.kernels import group_norm_cpu
from domainwise.kernels.group_norm_bf16 import Moments, Rows, relu_group_norm, relu_group_norm_mean

SHAPES = [(3, 64, 7, 5), (2, 128, 9, 9), (1, 32, 1, 1), (2, 256, 3, 3)]


def problem(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """x, weight, bias and the gradient of y; a third of x is negative, some of it zero."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator) + 0.4
    x[x.abs() < 0.05] = 0
    weight, bias = torch.randn(2, shape[1], generator=generator)
    dy = torch.randn(shape, generator=generator)
    x, dy = (t.to(dtype).contiguous(memory_format=torch.channels_last) for t in (x, dy))
    return x, weight, bias, dy


def reference(x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """y and the gradients of x, weight and bias, in float64."""
    inputs = [t.double().detach().requires_grad_() for t in (x, weight, bias)]
    y = F.group_norm(F.relu(inputs[0]), 8, inputs[1], inputs[2], 1e-5)
    return y, *torch.autograd.grad(y, inputs, dy.double())


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours.double() - theirs).abs().max() <= tolerance * theirs.abs().max())


def fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return Rows.apply(x, weight, bias, 8, 1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_relu_group_norm_and_its_gradients(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    x, weight, bias, dy = problem(shape, dtype)
    inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = fused(*inputs)
    assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
    found = (y, *torch.autograd.grad(y, inputs, dy))
    for ours, theirs in zip(found, reference(x, weight, bias, dy), strict=True):
        assert close(ours, theirs, tolerance)


def test_any_memory_format_will_do() -> None:
    x, weight, bias, dy = problem(SHAPES[0])
    inputs = [x.contiguous().requires_grad_(), weight, bias]
    y = fused(*inputs)
    (dx,) = torch.autograd.grad(y, inputs[0], dy.contiguous())
    expected = reference(x, weight, bias, dy)
    assert close(y, expected[0], 1e-6) and close(dx, expected[1], 1e-6)


def test_nan_is_not_hidden() -> None:
    x, weight, bias, _ = problem(SHAPES[0])
    x[0, 0, 0, 0] = torch.nan
    assert fused(x, weight, bias)[0, :8].isnan().all() and not fused(x, weight, bias)[1:].isnan().any()


def test_second_derivatives_are_those_of_plain_pytorch() -> None:
    x, weight, bias, dy = problem((2, 64, 3, 3))

    def penalty(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [t.to(dtype).detach().requires_grad_() for t in (x, weight, bias)]
        (slope,) = torch.autograd.grad(function(*inputs), inputs[0], dy.to(dtype), create_graph=True)
        return torch.autograd.grad(slope.square().sum(), inputs[:2])

    plain = penalty(lambda x, w, b: F.group_norm(F.relu(x), 8, w, b, 1e-5), torch.float64)
    for ours, theirs in zip(penalty(fused, torch.float32), plain, strict=True):
        assert close(ours, theirs, 1e-4)


def test_on_a_cpu_a_batch_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, dy = problem((5, 64, 3, 4))
    monkeypatch.setattr(group_norm_cpu, "CACHED", 2 * x[0].numel())
    y, *statistics = group_norm_cpu.forward(x, weight, bias, 8, 1e-5)
    dx, (dbias, dweight) = group_norm_cpu.backward(dy, x, weight, *statistics)
    for ours, theirs in zip((y, dx, dweight, dbias), reference(x, weight, bias, dy), strict=True):
        assert close(ours, theirs, 1e-6)


@pytest.mark.parametrize(("channels", "ours"), [(64, True), (120, True), (128, False)])
def test_in_bf16_small_groups_are_ours(channels: int, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = group_norm_cpu.forward
    monkeypatch.setattr(group_norm_cpu, "forward", lambda *given: seen.append(1) or forward(*given))
    norm = torch.nn.GroupNorm(8, channels)
    x = torch.randn(2, channels, 5, 5, dtype=torch.bfloat16)
    y, expected = relu_group_norm(x.clone(), norm), norm.double()(F.relu(x.double()))
    assert y.dtype == x.dtype and close(y, expected, 1e-2)
    assert len(seen) == ours


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_mean_over_pixels_and_its_gradients(dtype: torch.dtype, tolerance: float) -> None:
    x, weight, bias, direction = problem((3, 128, 14, 14), dtype)
    x += bias.to(dtype)[:, None, None]
    dz = direction[:, :, 0, 0].float()
    norm = torch.nn.GroupNorm(8, 128)
    norm.load_state_dict({"weight": weight, "bias": bias})

    def found(function: Any, x: Tensor, dz: Tensor) -> tuple[Tensor, ...]:
        """z, its gradients, and those of a function of the gradient of x."""
        x = x.detach().requires_grad_()
        z = function(x.clone(memory_format=torch.preserve_format), norm)
        first = torch.autograd.grad(z, (x, norm.weight, norm.bias), dz, create_graph=True)
        return z, *first, *torch.autograd.grad((first[0] * direction).sum(), (x, norm.weight))

    ours = found(relu_group_norm_mean, x, dz)
    norm.double()
    theirs = found(lambda x, norm: norm(F.relu(x)).mean(dim=(2, 3)), x.double(), dz.double())
    for one, other in zip(ours, theirs, strict=True):
        assert close(one, other, tolerance)


@pytest.mark.parametrize("channels", [64, 128])
def test_where_nothing_gets_through_there_is_the_bias(channels: int) -> None:
    norm = torch.nn.GroupNorm(8, channels)
    torch.nn.init.normal_(norm.bias)
    x = -torch.ones(2, channels, 3, 3, dtype=torch.bfloat16)
    assert torch.equal(relu_group_norm_mean(x.clone(), norm), norm.bias.expand(2, -1))
    assert torch.equal(relu_group_norm(x, norm), norm.bias.bfloat16()[:, None, None].expand(x.shape))


def test_sums_of_powers_in_parts_leave_x_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 6, 3, 4).bfloat16().contiguous(memory_format=torch.channels_last)
    kept = x.clone()
    monkeypatch.setattr(group_norm_cpu, "CACHED", 2 * x[0].numel())
    r = x.double().relu()
    assert torch.allclose(group_norm_cpu.moments(x).double(), torch.stack([r.sum((2, 3)), r.square().sum((2, 3))]))
    assert torch.equal(x, kept)


def test_sums_of_powers_have_all_derivatives() -> None:
    x = (torch.rand(2, 3, 2, 4, dtype=torch.float64) - 0.5).requires_grad_()
    assert torch.autograd.gradcheck(Moments.apply, x)
    assert torch.autograd.gradgradcheck(Moments.apply, x)
