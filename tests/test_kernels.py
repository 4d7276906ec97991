"""Our kernels against float64: the CPU's, and Triton's, interpreted on a CPU or as they are on a GPU."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, library
from torch.nn import functional as F

from domainwise.kernels import group_norm, group_norm_cpu, relu_group_norm, relu_group_norm_mean

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

pytestmark = [pytest.mark.gpu] if GPU else []
needs_triton = pytest.mark.skipif(not group_norm.TRITON, reason="Triton is not installed")
SHAPES = [(3, 64, 7, 5), (2, 128, 9, 9), (1, 32, 1, 1), (2, 256, 3, 3)]


@pytest.fixture(params=["cpu", pytest.param("triton", marks=needs_triton)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernels under test compute."""
    if request.param == "cpu":
        return "cpu"
    from domainwise.kernels import group_norm_triton

    monkeypatch.setattr(group_norm, "kernels", lambda _: group_norm_triton)
    return "cuda" if GPU else "cpu"


def problem(shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """x, weight, bias and the gradient of y; a third of x is negative, some of it zero."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator) + 0.4
    x[x.abs() < 0.05] = 0
    weight, bias = torch.randn(2, shape[1], generator=generator)
    dy = torch.randn(shape, generator=generator)
    x, dy = (t.to(dtype).contiguous(memory_format=torch.channels_last) for t in (x, dy))
    return tuple(t.to(device) for t in (x, weight, bias, dy))


def reference(x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """y and the gradients of x, weight and bias, in float64."""
    inputs = [t.double().detach().requires_grad_() for t in (x, weight, bias)]
    y = F.group_norm(F.relu(inputs[0]), 8, inputs[1], inputs[2], 1e-5)
    return y, *torch.autograd.grad(y, inputs, dy.double())


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours.double() - theirs).abs().max() <= tolerance * theirs.abs().max())


def fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.ops.domainwise.relu_group_norm(x, weight, bias, 8, 1e-5)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_relu_group_norm_and_its_gradients(
    shape: tuple[int, ...], device: str, dtype: torch.dtype, tolerance: float
) -> None:
    x, weight, bias, dy = problem(shape, device, dtype)
    inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = fused(*inputs)
    assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
    found = (y, *torch.autograd.grad(y, inputs, dy))
    for ours, theirs in zip(found, reference(x, weight, bias, dy), strict=True):
        assert close(ours, theirs, tolerance)


def test_any_memory_format_will_do(device: str) -> None:
    x, weight, bias, dy = problem(SHAPES[0], device)
    inputs = [x.contiguous().requires_grad_(), weight, bias]
    y = fused(*inputs)
    (dx,) = torch.autograd.grad(y, inputs[0], dy.contiguous())
    expected = reference(x, weight, bias, dy)
    assert close(y, expected[0], 1e-6) and close(dx, expected[1], 1e-6)


def test_nan_is_not_hidden(device: str) -> None:
    x, weight, bias, _ = problem(SHAPES[0], device)
    x[0, 0, 0, 0] = torch.nan
    assert fused(x, weight, bias)[0, :8].isnan().all() and not fused(x, weight, bias)[1:].isnan().any()


def test_second_derivatives_are_those_of_plain_pytorch(device: str) -> None:
    x, weight, bias, dy = problem((2, 64, 3, 3), device)

    def penalty(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [t.to(dtype).detach().requires_grad_() for t in (x, weight, bias)]
        (slope,) = torch.autograd.grad(function(*inputs), inputs[0], dy.to(dtype), create_graph=True)
        return torch.autograd.grad(slope.square().sum(), inputs[:2])

    plain = penalty(lambda x, w, b: F.group_norm(F.relu(x), 8, w, b, 1e-5), torch.float64)
    for ours, theirs in zip(penalty(fused, torch.float32), plain, strict=True):
        assert close(ours, theirs, 1e-4)


def test_the_kernels_keep_what_torch_is_told_of_them(device: str) -> None:
    """Shapes, strides and dtypes as promised to the compiler, no hidden mutation."""
    x, weight, bias, dy = problem(SHAPES[0], device)
    _, mean, scale = torch.ops.domainwise.relu_group_norm(x, weight, bias, 8, 1e-5)
    checks = ("test_schema", "test_faketensor")
    library.opcheck(torch.ops.domainwise.relu_group_norm, (x, weight, bias, 8, 1e-5), test_utils=checks)
    given = (dy, x, weight, mean, scale)
    library.opcheck(torch.ops.domainwise.relu_group_norm_backward, given, test_utils=checks)


def test_on_a_cpu_a_batch_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, dy = problem((5, 64, 3, 4), "cpu")
    monkeypatch.setattr(group_norm_cpu, "CACHED", 2 * x[0].numel())
    y, *statistics = group_norm_cpu.forward(x, weight, bias, 8, 1e-5)
    dx, (dbias, dweight) = group_norm_cpu.backward(dy, x, weight, *statistics)
    for ours, theirs in zip((y, dx, dweight, dbias), reference(x, weight, bias, dy), strict=True):
        assert close(ours, theirs, 1e-6)


@pytest.mark.slow
def test_compiled_code_calls_the_kernels(device: str) -> None:
    x, weight, bias, dy = problem(SHAPES[0], device)
    inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = torch.compile(lambda *given: 2 * fused(*given), backend="inductor" if GPU else "aot_eager")(*inputs)
    found = (y / 2, *torch.autograd.grad(y / 2, inputs, dy))
    for ours, theirs in zip(found, reference(x, weight, bias, dy), strict=True):
        assert close(ours, theirs, 1e-6)


def test_elsewhere_it_is_plain_pytorch() -> None:
    norm = torch.nn.GroupNorm(8, 64)
    x = torch.randn(2, 64, 5, 5)
    assert torch.equal(relu_group_norm(x.clone(), norm), norm(F.relu(x)))


@pytest.mark.parametrize(("channels", "ours"), [(64, True), (120, True), (128, False)])
def test_in_bf16_small_groups_are_ours(channels: int, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(group_norm, "kernels", lambda device: seen.append(device) or group_norm_cpu)
    norm = torch.nn.GroupNorm(8, channels)
    x = torch.randn(2, channels, 5, 5, dtype=torch.bfloat16)
    y, expected = relu_group_norm(x.clone(), norm), norm.double()(F.relu(x.double()))
    assert y.dtype == x.dtype and close(y, expected, 1e-2)
    assert seen == ["cpu"] * ours


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_mean_over_pixels_and_its_gradients(dtype: torch.dtype, tolerance: float) -> None:
    x, weight, bias, direction = problem((3, 128, 14, 14), "cpu", dtype)
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


def test_sums_of_powers_have_all_derivatives() -> None:
    r = torch.rand(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(group_norm.Moments.apply, r)
    assert torch.autograd.gradgradcheck(group_norm.Moments.apply, r)


@pytest.mark.parametrize(("channels", "groups", "fits"), [(64, 8, 1), (128, 8, 1), (48, 8, 0), (64, 1, 0), (96, 8, 0)])
def test_only_whole_groups_fit(channels: int, groups: int, fits: bool) -> None:
    assert group_norm.fits(torch.nn.GroupNorm(groups, channels)) == fits


@needs_triton
@pytest.mark.skipif(GPU, reason="the GPU compiles them itself")
@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, since this one interprets them."""
    import subprocess
    import sys

    code = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from domainwise.kernels import group_norm_triton as kernels
for dtype in ("*bf16", "*fp32"):
    for kernel in (kernels._forward_kernel, kernels._backward_kernel):
        constants = dict(CHANNELS=128, PER_GROUP=16, BLOCK_CHANNELS=32, BLOCK_PIXELS=64)
        special = {"pixels": "i32", "eps": "fp32"} | dict.fromkeys(constants, "constexpr")
        special |= dict.fromkeys(("x_at", "y_at", "dx_at", "dy_at"), dtype)
        signature = {name: special.get(name, "*fp32") for name in kernel.arg_names}
        built = compile(ASTSource(kernel, signature=signature, constexprs=constants), target=GPUTarget("cuda", 90, 32))
        assert built.asm["cubin"]
"""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    subprocess.run([sys.executable, "-c", code], check=True)
