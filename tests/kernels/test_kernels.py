"""Our Triton kernels against float64: interpreted on a CPU, or as they are on a GPU."""

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, library, nn
from torch.nn import functional as F

from domainwise import kernels
from domainwise.analysis.cam import grad_cam, last_map
from domainwise.data.batches import Batches
from domainwise.data.environments import Environments
from domainwise.engine.execution.isolation import arithmetic
from domainwise.kernels import convnet, first_layer, group_norm
from domainwise.kernels.adam import FlatAdam
from domainwise.kernels.draw import draw_batch
from domainwise.nets.network import build
from kernel_problems import DEVICE, GPU, close, needs_triton

pytestmark = [pytest.mark.gpu] if GPU else []
PRECISIONS = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
"""And how close to float64 results are, relative to the largest."""
GROUPS, EPS = 8, 1e-5

Given = tuple[Tensor, ...]
Function = Callable[..., Tensor]


def draw(*shapes: tuple[int, ...]) -> Given:
    """Random numbers, which lean to the positive; some are zero."""
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    drawn = [torch.randn(shape, generator=generator) + 0.2 for shape in shapes]
    return tuple(torch.where(t.abs() < 0.05, 0, t).to(DEVICE) for t in drawn)


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def norm_problem(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Given:
    """What a convolution gives, its bias, and the scale and shift of a GroupNorm."""
    x, *affine = draw(shape, *[shape[1:2]] * 3)
    return last(x.to(dtype)), *affine


def fused_norm(*given: Tensor, pooled: bool = False) -> Tensor:
    return torch.ops.domainwise.relu_group_norm(*given, GROUPS, EPS, pooled)[0]


def exact_norm(x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, pooled: bool = False) -> Tensor:
    y = F.group_norm(F.relu(x + shift.view(1, -1, 1, 1)), GROUPS, weight, bias, EPS)
    return y.mean(dim=(2, 3)) if pooled else y


def layer_problem(inputs: int, channels: int, height: int, width: int) -> Given:
    """Images, a convolution's weights and bias, and the scale and shift of a GroupNorm."""
    return draw((2, inputs, height, width), (channels, inputs, 3, 3), *[(channels,)] * 3)


def fused_layer(*given: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ops.domainwise.first_layer(*given, GROUPS, EPS, dtype, True)[0]


def exact_layer(image: Tensor, kernel: Tensor, *affine: Tensor) -> Tensor:
    return exact_norm(F.conv2d(image, kernel, padding=1), *affine)


def results(function: Function, given: Given, dtype: torch.dtype | None = None) -> Given:
    """What a function gives, and the gradients of all it was given."""
    inputs = [t.to(dtype or t.dtype).detach().requires_grad_() for t in given]
    y = function(*inputs)
    (dy,) = draw(tuple(y.shape))
    return y, *torch.autograd.grad(y, inputs, dy.to(y.dtype))


def agree(fused: Function, exact: Function, given: Given, tolerance: float) -> bool:
    pairs = zip(results(fused, given), results(exact, given, torch.float64), strict=True)
    return all(close(*pair, tolerance) for pair in pairs)


@needs_triton
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("shape", [(3, 64, 7, 5), (2, 128, 9, 9), (1, 32, 1, 1), (2, 256, 3, 3)])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_relu_group_norm_and_its_gradients(shape: tuple[int, ...], dtype: torch.dtype, pooled: bool) -> None:
    tolerance = PRECISIONS[dtype]
    given = norm_problem(shape, dtype)
    assert agree(lambda *g: fused_norm(*g, pooled=pooled), lambda *g: exact_norm(*g, pooled=pooled), given, tolerance)
    y = fused_norm(*given, pooled=pooled)
    assert (
        y.dtype == torch.float32 if pooled else y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
    )


@needs_triton
@pytest.mark.parametrize("shape", [(2, 64, 9, 7), (1, 32, 4, 4), (3, 128, 11, 8)])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_first_layer_and_its_gradients(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    tolerance = 2 * PRECISIONS[dtype]
    given = layer_problem(*shape)
    if dtype == torch.bfloat16 and not GPU:
        pytest.skip("the interpreter has no products of bfloat16")
    if dtype == torch.bfloat16:  # which products are of: then only what is kept is rounded
        given = (*(t.to(dtype).float() for t in given[:2]), *given[2:])
    assert agree(lambda *g: fused_layer(*g, dtype=dtype), exact_layer, given, tolerance)
    reordered = (last(given[0]), last(given[1]), *given[2:])
    assert agree(lambda *g: fused_layer(*g, dtype=dtype), exact_layer, reordered, tolerance)


@pytest.mark.skipif(not GPU, reason="the interpreter takes long, and has no products of lower precision")
@pytest.mark.parametrize(
    ("dtype", "precision", "tolerance"),
    [(torch.float32, "highest", 1e-5), (torch.float32, "high", 1e-2), (torch.bfloat16, "high", 1e-2)],
)
@pytest.mark.parametrize("shape", [(2, 64, 28, 28), (3, 64, 28, 28), (1, 32, 33, 20), (3, 128, 11, 8), (2, 64, 8, 8)])
def test_the_first_layer_in_every_precision(
    shape: tuple[int, int, int, int], dtype: torch.dtype, precision: str, tolerance: float
) -> None:
    given = layer_problem(*shape)
    if precision == "high":  # round what is multiplied beforehand, or some pixels are on the other side of ReLU
        given = tuple(t.bfloat16().float() for t in given)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert agree(lambda *g: fused_layer(*g, dtype=dtype), exact_layer, given, tolerance)
    finally:
        torch.set_float32_matmul_precision(before)


@needs_triton
@pytest.mark.parametrize(
    "problem", [(fused_norm, norm_problem((2, 64, 3, 3))), (fused_layer, layer_problem(2, 64, 5, 4))]
)
def test_what_is_not_wanted_changes_nothing(problem: tuple[Function, Given]) -> None:
    """As in an ascent, where weights are constants, and in a descent, where images are."""
    function, given = problem
    _, *every = results(function, given)
    inputs = [given[0].detach().requires_grad_(), *given[1:]]
    y = function(*inputs)
    (dy,) = draw(tuple(y.shape))
    assert torch.equal(torch.autograd.grad(y, inputs[0], dy)[0], every[0])
    inputs = [given[0], *(t.detach().requires_grad_() for t in given[1:])]
    found = torch.autograd.grad(function(*inputs), inputs[1:], dy)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, every[1:], strict=True))


@needs_triton
def test_a_first_layer_that_keeps_nothing_gives_the_same() -> None:
    given = layer_problem(2, 64, 9, 7)
    y, nothing, *statistics = torch.ops.domainwise.first_layer(*given, GROUPS, EPS, torch.float32, False)
    kept, _, *others = torch.ops.domainwise.first_layer(*given, GROUPS, EPS, torch.float32, True)
    assert torch.equal(y, kept) and nothing.numel() == 0
    with_gradient = torch.ops.domainwise.first_layer(given[0].requires_grad_(), *given[1:], GROUPS, EPS, y.dtype, False)
    with pytest.raises(RuntimeError, match="kept=False"):
        with_gradient[0].sum().backward()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(statistics, others, strict=True))


@needs_triton
def test_any_memory_format_will_do() -> None:
    x, *affine = norm_problem((3, 64, 7, 5))
    assert agree(fused_norm, exact_norm, (x.contiguous(), *affine), 1e-6)


@needs_triton
def test_nan_is_not_hidden() -> None:
    x, *affine = norm_problem((3, 64, 7, 5))
    x[0, 0, 0, 0] = torch.nan
    assert fused_norm(x, *affine)[0, :8].isnan().all() and not fused_norm(x, *affine)[1:].isnan().any()
    image, *rest = layer_problem(2, 64, 5, 4)
    image[0, 0, 0, 0] = torch.nan
    assert fused_layer(image, *rest)[0].isnan().all() and not fused_layer(image, *rest)[1:].isnan().any()


@needs_triton
@pytest.mark.parametrize(
    ("fused", "exact", "given"),
    [(fused_norm, exact_norm, norm_problem((2, 64, 3, 3))), (fused_layer, exact_layer, layer_problem(2, 64, 4, 3))],
)
def test_second_derivatives_are_those_of_plain_pytorch(fused: Function, exact: Function, given: Given) -> None:
    def penalty(function: Function, dtype: torch.dtype) -> Given:
        inputs = [t.to(dtype).detach().requires_grad_() for t in given]
        y = function(*inputs)
        (slope,) = torch.autograd.grad(y, inputs[0], draw(tuple(y.shape))[0].to(dtype), create_graph=True)
        return torch.autograd.grad(slope.square().sum(), inputs[:-1])

    for ours, theirs in zip(penalty(fused, torch.float32), penalty(exact, torch.float64), strict=True):
        assert close(ours, theirs, 1e-4)


@needs_triton
def test_the_kernels_keep_what_torch_is_told_of_them() -> None:
    """Shapes, strides and dtypes as promised to the compiler, no hidden mutation."""
    checks: dict[str, Any] = {"test_utils": ("test_schema", "test_faketensor")}
    operations = torch.ops.domainwise
    x, *affine = norm_problem((3, 64, 7, 5))
    image, kernel, *_ = layer = layer_problem(2, 64, 7, 5)
    for pooled in (False, True):
        y, mean, scale = operations.relu_group_norm(x, *affine, GROUPS, EPS, pooled)
        library.opcheck(operations.relu_group_norm, (x, *affine, GROUPS, EPS, pooled), **checks)
        for wanted in (False, True):
            given = (torch.ones_like(y), x, *affine[:2], mean, scale, pooled, wanted)
            library.opcheck(operations.relu_group_norm_backward, given, **checks)
    for dtype in (torch.float32, torch.bfloat16):
        y, *kept = operations.first_layer(*layer, GROUPS, EPS, dtype, True)
        for keep in (False, True):
            library.opcheck(operations.first_layer, (*layer, GROUPS, EPS, dtype, keep), **checks)
        for wanted in ((False, True), (True, False), (True, True)):
            given = (torch.ones_like(y), kept[0], image, kernel, affine[1], *kept[1:], *wanted)
            library.opcheck(operations.first_layer_backward, given, **checks)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fused", "exact", "given"),
    [(fused_norm, exact_norm, norm_problem((2, 64, 3, 3))), (fused_layer, exact_layer, layer_problem(2, 64, 4, 3))],
)
def test_compiled_code_calls_the_kernels(fused: Function, exact: Function, given: Given) -> None:
    compiled = torch.compile(lambda *g: 2 * fused(*g), backend="inductor" if GPU else "aot_eager")
    assert agree(lambda *g: compiled(*g) / 2, exact, given, 2e-6)


def test_elsewhere_it_is_plain_pytorch() -> None:
    features, x = build("mnist-cnn", (2, 28, 28), 2).features, torch.randn(2, 2, 9, 9)
    y = x
    for convolution, norm in zip(features.convolutions, features.norms, strict=True):
        y = norm(F.relu(convolution(y)))
    assert torch.equal(features(x), y.mean(dim=(2, 3)))


@pytest.mark.skipif(not GPU, reason="chooses the kernels on a GPU only")
@pytest.mark.parametrize(("inputs", "pool"), [(2, False), (64, False), (64, True)])
def test_on_a_gpu_it_is_the_kernels(inputs: int, pool: bool) -> None:
    convolution, norm = nn.Conv2d(inputs, 64, 3, padding=1), nn.GroupNorm(8, 64)
    (x,) = draw((4, inputs, 9, 9))
    y = norm(F.relu(convolution(x.cpu())))
    found = convnet.conv_relu_group_norm(x, convolution.cuda(), norm.cuda(), pool=pool)
    assert "first" in type(found.grad_fn).__name__ if inputs == 2 else "relu_group" in type(found.grad_fn).__name__
    assert close(found.cpu(), (y.mean(dim=(2, 3)) if pool else y).double(), 1e-2)


@pytest.mark.skipif(not GPU, reason="images are added on a GPU only")
def test_an_odd_number_of_images_is_made_whole_and_nothing_else_changes() -> None:
    """As if other images were there, which nothing depends on."""
    (x,) = draw((80, 2, 28, 28))
    features = build("mnist-cnn", (2, 28, 28), 2, precision="bf16").features.cuda()

    def slopes(x: Tensor) -> Given:
        x = x.clone().requires_grad_()
        z = features(x)
        loss = (z[:77] * torch.arange(128, device="cuda")).sum()
        return z[:77], *torch.autograd.grad(loss, [x, *features.parameters()])

    assert len(convnet.padded(x[:77])) == 77, "not in other precisions"
    with arithmetic("bf16"), torch.autocast("cuda", torch.bfloat16):
        assert len(convnet.padded(x[:77])) == len(convnet.padded(x)) == 80 and len(convnet.padded(x[:63])) == 63
        found, expected = slopes(x[:77]), slopes(x)
    assert len(found[0]) == len(found[1]) == 77
    for ours, theirs in zip(found, expected, strict=True):
        assert close(ours, theirs[: len(ours)].double(), 1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_layer_can_be_watched_whoever_computes_it(precision: str) -> None:
    (x,) = draw((5, 2, 28, 28))
    network = build("mnist-cnn", (2, 28, 28), 2, precision=precision).to(DEVICE)
    assert last_map(network, x) == "features.norms.3" and grad_cam(network, x).heat.shape == (5, 28, 28)


@pytest.mark.parametrize(
    ("channels", "groups", "supported"), [(64, 8, 1), (128, 8, 1), (48, 8, 0), (64, 1, 0), (96, 8, 0)]
)
def test_only_whole_groups_are_supported(channels: int, groups: int, supported: bool) -> None:
    assert group_norm.supported(nn.GroupNorm(groups, channels)) == supported


@pytest.mark.parametrize(
    ("inputs", "change", "supported"),
    [(1, {}, 1), (3, {}, 1), (4, {}, 0), (2, {"stride": 2}, 0), (2, {"dilation": 2}, 0), (2, {"bias": False}, 0)],
)
def test_only_plain_first_layers_are_supported(inputs: int, change: dict[str, Any], supported: bool) -> None:
    convolution = nn.Conv2d(inputs, 64, 3, padding=1, **change)
    assert first_layer.supported(torch.zeros(1, inputs, 4, 4), convolution, nn.GroupNorm(8, 64)) == supported


@needs_triton
@pytest.mark.parametrize("shape", [(2, 28, 28), (3, 33, 35), (1, 2, 2)])
def test_a_batch_is_drawn_as_in_plain_pytorch(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    domains = {
        name: (torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator), torch.arange(n) % 5)
        for name, n in (("a", 9), ("b", 30), ("c", 14))
    }
    channels = shape[0]
    data = Environments.from_arrays(domains, mean=[0.4, 0.5, 0.6][:channels], std=[0.2, 0.3, 0.25][:channels]).to(
        DEVICE
    )
    rows = [data.split(domain, 0)["in"] for domain in ("c", "a")]
    plain, ours = (Batches(data, rows, 7, torch.Generator(DEVICE).manual_seed(1)) for _ in range(2))
    for _ in range(3):
        with kernels.disabled():
            expected, labels = plain.draw()
        x, y = draw_batch(data, ours.rows, ours.starts, ours.sizes, ours.uniform())
        assert torch.equal(y, labels) and torch.allclose(x, expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(x, expected) or not GPU, "on a CPU to divide is not to multiply"


@needs_triton
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_adam(decay: float) -> None:
    """Three tensors of odd sizes, thirty steps, half of them after loading a state."""
    drawn = draw((3, 5), (7,), (2, 4, 3, 3))
    drawn = (*drawn[:2], last(drawn[2]))
    ours, theirs = ([nn.Parameter(t.to(dtype)) for t in drawn] for dtype in (torch.float32, torch.float64))
    settings = (1e-2, (0.9, 0.99), 1e-8, decay)
    exact, optimizer = torch.optim.Adam(theirs, *settings), FlatAdam(ours, 1e-2, (0.9, 0.99), decay)
    for step in range(30):
        if step == 15:
            state = deepcopy(optimizer.state_dict())
            optimizer = FlatAdam(ours, 1e-2, (0.9, 0.99), decay)
            optimizer.load_state_dict(state)
        for number, parameter in enumerate((*ours, *theirs)):
            parameter.grad = (parameter.detach() - number % 3) * (step + 1)
        optimizer.step()
        exact.step()
    assert all(close(a, b, 1e-6) for a, b in zip(ours, theirs, strict=True))
    assert all((parameter.data_ptr() - optimizer.flat.data_ptr()) % 256 == 0 for parameter in ours)
    assert all(parameter.stride() == t.stride() for parameter, t in zip(ours, drawn, strict=True))


@needs_triton
def test_adams_learning_rate_may_be_a_tensor_that_is_filled() -> None:
    """As a captured step reads it."""
    (values,) = draw((3, 5))
    ours, theirs = nn.Parameter(values.clone()), nn.Parameter(values.clone())
    one, other = FlatAdam([ours], 1e-2, (0.9, 0.99), 0.0), FlatAdam([theirs], 1e-2, (0.9, 0.99), 0.0)
    rate = one.param_groups[0]["lr"] = values.new_zeros(())
    for step in range(4):
        other.param_groups[0]["lr"] = 1e-2 / (step + 1)
        rate.fill_(1e-2 / (step + 1))
        for parameter in (ours, theirs):
            parameter.grad = parameter.detach() * (step + 1)
        one.step()
        other.step()
    assert torch.equal(ours, theirs)


@needs_triton
def test_adam_has_torchs_state() -> None:
    """A training may go on elsewhere."""
    (values,) = draw((3, 5))
    ours, theirs = nn.Parameter(values.clone()), nn.Parameter(values.clone())
    optimizers = FlatAdam([ours], 1e-2, (0.9, 0.99), 0.0), torch.optim.Adam([theirs], 1e-2, (0.9, 0.99))
    for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    found, expected = (optimizer.state_dict()["state"][0] for optimizer in optimizers)
    assert found.keys() == expected.keys() and all(torch.allclose(found[k], expected[k].to(DEVICE)) for k in found)


@needs_triton
@pytest.mark.skipif(GPU, reason="the GPU compiles them itself")
@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, since this one interprets them."""
    code = """
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from domainwise.kernels import adam_triton, columns_triton, draw_triton, first_layer_triton, group_norm_triton
from domainwise.kernels import sums_triton

sizes = dict(INPUTS=2, HEIGHT=28, WIDTH=28, CHANNELS=64, PIXELS=784, PER_GROUP=8, BLOCKS=2, ROWS=64, COLUMNS=32)
blocks = dict(BLOCK=1024, TAPS=32, BLOCK_CHANNELS=32, BLOCK_PIXELS=64, POOLED=False, WANTED=True, IMAGE_WANTED=True)
blocks |= dict(LR_ON_DEVICE=False)
integers = ("pixels", "samples", "rows", "columns", "n")
integers += ("per_domain", "per_input", "per_tap", "per_sample", "per_channel", "per_row", "per_column")
stored = ("x_at", "y_at", "dx_at", "dy_at")
modules = (adam_triton, columns_triton, draw_triton, first_layer_triton, group_norm_triton, sums_triton)
kernels = [value for module in modules for name, value in vars(module).items() if name.endswith("_kernel")]
assert len(kernels) == 8
for dtype, type in (("*bf16", tl.bfloat16), ("*fp32", tl.float32)):
    for kernel in kernels:
        constants = sizes | blocks | dict(TYPE=type, PRECISION="tf32")
        constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
        known = dict.fromkeys(constants, "constexpr") | dict.fromkeys(integers, "i32") | dict.fromkeys(stored, dtype)
        if kernel.__name__ == "_draw_kernel":
            known |= dict.fromkeys(("rows_at", "starts_at", "labels_at", "y_at"), "*i64") | {"images_at": "*u8"}
            known |= {"u_at": "*fp64", "sizes_at": "*fp64", "x_at": "*fp32"}
        signature = {n: known.get(n, "*fp32" if n.endswith("_at") else "fp32") for n in kernel.arg_names}
        built = compile(ASTSource(kernel, signature=signature, constexprs=constants), target=GPUTarget("cuda", 90, 32))
        assert built.asm["cubin"]
        print(kernel.__name__, built.metadata.shared, "bytes shared")
"""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    subprocess.run([sys.executable, "-c", code], check=True)
