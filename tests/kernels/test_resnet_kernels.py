"""A ResNet's start, the folding of its norms, and whole networks, against float64 and plain PyTorch."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

from domainwise import kernels
from domainwise.engine.execution.isolation import arithmetic
from domainwise.kernels import stem
from domainwise.kernels.fold import plain_fold
from domainwise.nets import resnet
from domainwise.nets.network import Network, build
from domainwise.nets.resnet import FrozenBatchNorm2d
from kernel_problems import CHECKS, DEVICE, GPU, close, gradients, needs_gpu, needs_triton, numbers

pytestmark = [pytest.mark.gpu] if GPU else []
POOLS = [(2, 64, 8, 8), (1, 64, 7, 5), (2, 32, 9, 70), (1, 64, 1, 2)]


def pooled(x: Tensor, bias: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x + bias[:, None, None]), 3, stride=2, padding=1)


def fused_pool(x: Tensor, bias: Tensor) -> Tensor:
    return torch.ops.domainwise.relu_pool(x, bias)[0]


@needs_triton
@pytest.mark.parametrize("shape", POOLS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_pooling_and_its_gradients(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    given = [numbers(*shape, dtype=dtype), numbers(shape[1])]
    dy = numbers(*pooled(*given).shape, dtype=dtype)
    ours = gradients(fused_pool, given, dy)
    assert ours[0].dtype == dtype and ours[0].is_contiguous(memory_format=torch.channels_last)
    for found, wanted in zip(ours, gradients(pooled, given, dy, torch.float64), strict=True):
        assert close(found, wanted, tolerance)


@needs_triton
def test_pooling_twice_differentiated() -> None:
    given = [numbers(2, 32, 7, 9), numbers(32)]
    dy = numbers(*pooled(*given).shape)

    def penalty(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        x, bias = (t.to(dtype).detach().requires_grad_() for t in given)
        slope = torch.autograd.grad(function(x, bias).square(), x, dy.to(dtype), create_graph=True)[0]
        return torch.autograd.grad(slope.square().sum(), (x, bias))

    for ours, theirs in zip(penalty(fused_pool, torch.float32), penalty(pooled, torch.float64), strict=True):
        assert close(ours, theirs, 1e-5)


@needs_triton
def test_pooling_shows_nan() -> None:
    x = numbers(2, 32, 7, 9)
    x[0, 0, 2, 2] = torch.nan
    y = fused_pool(x, numbers(32))
    assert y[0, 0, 1, 1].isnan() and y.isnan().sum() == 1


IMAGES = [(2, 3, 16, 16), (1, 3, 15, 17), (2, 1, 9, 8), (1, 2, 7, 7)]


@pytest.mark.parametrize("shape", IMAGES)
def test_windows_of_pixels_give_the_same_convolution(shape: tuple[int, ...]) -> None:
    """And the same gradients, in float64, for images of any size and number of channels."""
    x, weight = numbers(*shape, dtype=torch.float64), numbers(8, shape[1], 7, 7, dtype=torch.float64)

    def rearranged(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(stem.plain_windows(x), stem.window_kernel(weight))

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, stride=2, padding=3)

    dy = numbers(*plain(x, weight).shape, dtype=torch.float64)
    for ours, theirs in zip(gradients(rearranged, [x, weight], dy), gradients(plain, [x, weight], dy), strict=True):
        assert close(ours, theirs, 1e-13)


@needs_triton
@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_are_gathered_and_given_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, dy = numbers(*shape), numbers(*stem.plain_windows(numbers(*shape)).shape, dtype=dtype)
    y, dx = gradients(lambda x: torch.ops.domainwise.windows(x, dtype), [x], dy)
    exact, exact_dx = gradients(stem.plain_windows, [x], dy, torch.float64)
    assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last) and dx.dtype == torch.float32
    assert close(y, exact, 0 if dtype == torch.float32 else 1e-2) and close(dx, exact_dx, 1e-6)


@needs_triton
def test_windows_twice_differentiated() -> None:
    both = []
    for function, dtype in (
        (lambda x: torch.ops.domainwise.windows(x, x.dtype), torch.float32),
        (stem.plain_windows, torch.float64),
    ):
        x = numbers(2, 3, 9, 8).to(dtype).requires_grad_()
        slope = torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=True)[0]
        both += torch.autograd.grad(slope.square().sum(), x)
    assert close(both[0], both[1], 1e-5)


def norm(width: int) -> FrozenBatchNorm2d:
    made = FrozenBatchNorm2d(width)
    with torch.no_grad():
        for tensor in (made.weight, made.bias, made.running_mean):
            tensor.normal_()
        made.running_var.uniform_(0.2, 2)
    return made


def folding_problem(outputs: int, inputs: int, size: int) -> tuple[list[Tensor], list[Tensor]]:
    """Weights, scale and shift; and statistics."""
    given = [numbers(outputs, inputs, size, size), numbers(outputs), numbers(outputs).flip(0)]
    return given, [numbers(outputs).roll(1), numbers(outputs).abs() + 0.1]


def test_a_folded_norm_is_the_norm() -> None:
    """In float64, and in plain PyTorch, which the kernels are compared with."""
    torch.manual_seed(0)
    conv, bn = nn.Conv2d(4, 6, 3, bias=False).double(), norm(6).double()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    weight, bias = plain_fold(conv.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.eps, torch.float64)
    assert close(F.conv2d(x, weight, bias), bn(conv(x)), 1e-14)


@needs_triton
@pytest.mark.parametrize("shape", [(64, 3, 7), (32, 48, 3), (96, 32, 1), (8, 256, 3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_folding_and_its_gradients(shape: tuple[int, int, int], dtype: torch.dtype, tolerance: float) -> None:
    given, statistics = folding_problem(*shape)
    dy = [numbers(*given[0].shape, dtype=dtype), numbers(shape[0], dtype=dtype)]

    def all_of(function: Any, wide: torch.dtype, narrow: torch.dtype) -> list[Tensor]:
        inputs = [t.to(wide).detach().requires_grad_() for t in given]
        folded = function(*inputs, *(t.to(wide) for t in statistics), 1e-5, narrow)
        assert all(t.dtype == narrow for t in folded)
        return [*folded, *torch.autograd.grad(folded, inputs, [t.to(narrow) for t in dy])]

    ours = all_of(torch.ops.domainwise.fold, torch.float32, dtype)
    for found, wanted in zip(ours, all_of(plain_fold, torch.float64, torch.float64), strict=True):
        assert close(found, wanted, tolerance)


@needs_triton
def test_folding_twice_differentiated() -> None:
    given, statistics = folding_problem(16, 8, 3)

    def penalty(function: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [t.to(dtype).detach().requires_grad_() for t in given]
        weight, bias = function(*inputs, *(t.to(dtype) for t in statistics), 1e-5, dtype)
        slopes = torch.autograd.grad(weight.pow(3).sum() + bias.pow(3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), inputs)

    ours = penalty(torch.ops.domainwise.fold, torch.float32)
    for found, wanted in zip(ours, penalty(plain_fold, torch.float64), strict=True):
        assert close(found, wanted, 1e-5)


@needs_triton
def test_the_operations_keep_what_torch_is_told_of_them() -> None:
    ops = torch.ops.domainwise
    for shape in ((32, 48, 3), (32, 16, 1)):
        given, statistics = folding_problem(*shape)
        library.opcheck(ops.fold, (*given, *statistics, 1e-5, torch.bfloat16), test_utils=CHECKS)
        library.opcheck(ops.fold_backward, (*given[::2], *given[:2], *statistics, 1e-5), test_utils=CHECKS)
    x = numbers(2, 3, 9, 8)
    library.opcheck(ops.windows, (x, torch.bfloat16), test_utils=CHECKS)
    given = (ops.windows(x, torch.bfloat16), 3, 9, 8, torch.float32)
    library.opcheck(ops.windows_backward, given, test_utils=CHECKS)
    x, bias = numbers(2, 32, 7, 9), numbers(32)
    library.opcheck(ops.relu_pool, (x, bias), test_utils=CHECKS)
    y, winner = ops.relu_pool(x, bias)
    library.opcheck(ops.relu_pool_backward, (y, winner, 7, 9, True), test_utils=CHECKS)


def test_elsewhere_it_is_plain_pytorch() -> None:
    torch.manual_seed(0)
    conv, bn, x = nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64), torch.randn(2, 3, 19, 19)
    z = resnet.stem(x, conv, bn)
    assert torch.equal(z, F.max_pool2d(F.relu(bn(conv(x))), 3, 2, 1))
    block = resnet.BasicBlock(64, 64, 1, norm)
    y = F.relu(block.bn1(block.conv1(z)))
    assert torch.equal(block(z), F.relu(block.bn2(block.conv2(y)) + z))
    assert torch.equal(resnet.Stage(block, block)(z), block(block(z)))


def a_network(name: str) -> tuple[Network, Tensor]:
    """With a norm that does something, and images of an odd size."""
    torch.manual_seed(0)
    network = build(name, (3, 97, 97), 7).to(DEVICE, memory_format=torch.channels_last)
    for module in network.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.load_state_dict(norm(module.num_features).state_dict())
            nn.init.uniform_(module.weight, 0.2, 0.6)
    return network, torch.randn(4, 3, 97, 97, device=DEVICE)


def errors(network: Network, x: Tensor) -> list[float]:
    """Relative errors of the features' mean square, and of its gradients of the image and every weight, by float64."""
    exact = copy.deepcopy(network).double()
    vars(exact.features).pop("forward", None)  # of a network that was compiled
    exact.precision = "fp32"

    def all_of(network: Network, x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        loss = network.represent(x).square().mean()
        return [loss, *torch.autograd.grad(loss, [x, *network.features.parameters()])]

    pairs = zip(all_of(network, x), all_of(exact, x.double()), strict=True)
    return [float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet50-v1"])
def test_a_whole_network_is_as_exact_as_in_plain_pytorch(name: str) -> None:
    network, x = a_network(name)
    network.precision = "bf16"
    with arithmetic("bf16"):
        ours = errors(network, x)
        with kernels.disabled():
            theirs = errors(network, x)
    assert max(ours) < 1.5 * max(theirs) and sum(ours) < 1.5 * sum(theirs)
    assert ours != theirs  # else the kernels were not used


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_float32_is_plain_pytorch(precision: str) -> None:
    network, x = a_network("resnet18")
    with arithmetic(precision), torch.no_grad():
        y = network(x)
        with kernels.disabled():
            assert torch.equal(network(x), y)


@pytest.mark.gpu
@pytest.mark.slow
@needs_gpu
def test_a_compiled_network_is_one_graph_and_the_same() -> None:
    network, x = a_network("resnet50")
    network.precision = "bf16"
    plainly = errors(network, x)
    network.features.forward = torch.compile(network.features.forward, fullgraph=True, dynamic=False)
    assert max(errors(network, x)) < 1.2 * max(plainly)


@pytest.mark.gpu
@needs_gpu
def test_compiled_code_writes_gradients_as_kernels_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from domainwise.kernels import pool_triton, relu_triton

    layouts: list[bool] = []
    for module in (pool_triton, relu_triton):

        def watched(dy: Tensor, *others: Any, backward: Any = module.backward, **options: Any) -> Any:
            layouts.append(dy.is_contiguous(memory_format=torch.channels_last))
            return backward(dy, *others, **options)

        monkeypatch.setattr(module, "backward", watched)
    network, x = a_network("resnet18")
    network.precision = "bf16"
    network.features.forward = torch.compile(network.features.forward, fullgraph=True, dynamic=False)
    network.represent(x).square().mean().backward()
    assert len(layouts) >= 9 and all(layouts), "else they are copied first"


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
from domainwise.kernels import fold_triton, pool_triton, product_triton, relu_triton, windows_triton
sizes = dict.fromkeys(("pixels", "work", "height", "width", "length", "rows", "columns", "outputs"), "i32")
fold, pool = dict(WEIGHTS=576, ROWS=1, COLUMNS=1024), dict(CHANNELS=64, BLOCK=8)
tile, windows = dict(ROWS=64, COLUMNS=128), dict(SQUARE=6, CHANNELS=64, BLOCK=32)
for kernel, constants in (
    (fold_triton._fold_kernel, fold),
    (fold_triton._fold_backward_kernel, fold),
    (pool_triton._pool_kernel, pool),
    (pool_triton._pool_backward_kernel, pool | dict(SUM=True)),
    (relu_triton._relu_kernel, tile | dict(CHANNELS=256, BESIDE=True, SUM=True)),
    (product_triton._product_kernel, tile | dict(
        INPUTS=64, OUTPUTS=256, FORWARD=False, BESIDE=True, MASK=True, SUM=True, DEPTH=64)),
    (windows_triton._windows_kernel, windows),
    (windows_triton._windows_backward_kernel, windows),
):
    narrow = dict.fromkeys(("x_at", "y_at", "dy_at", "dz_at", "dx_at", "weight_at", "beside_at", "mask_at"), "*bf16")
    if kernel.__name__.startswith("_fold"):
        narrow = {"folded_at": "*bf16", "bias_at": "*bf16", "dfolded_at": "*bf16"}
    special = sizes | narrow | {"winner_at": "*u8", "eps": "fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: special.get(name, "*fp32") for name in kernel.arg_names}
    built = compile(ASTSource(kernel, signature=signature, constexprs=constants), target=GPUTarget("cuda", 90, 32))
    assert built.asm["cubin"]
"""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    subprocess.run([sys.executable, "-c", code], check=True)
