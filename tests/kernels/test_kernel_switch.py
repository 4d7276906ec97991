"""Accelerated versions of operations: where they apply, that they equal the plain ones, and how they are turned off."""

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from domainwise import kernels
from domainwise.data.augment import Augmenter
from domainwise.data.augmentations import AUGMENTATIONS
from domainwise.data.batches import Batches
from domainwise.data.environments import Environments
from domainwise.engine.metrics import measure
from domainwise.kernels import registry
from domainwise.kernels.registry import VERSIONS, Version
from domainwise.nets.network import build
from domainwise.nets.resnet import BasicBlock, FrozenBatchNorm2d, Stage, stem
from kernel_problems import DEVICE, GPU, close, needs_triton, numbers, on_any_device

pytestmark = [pytest.mark.gpu] if GPU else []


def environments() -> Environments:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (20, 3, 9, 6), dtype=torch.uint8, generator=generator)
    return Environments.from_arrays({"a": (images, torch.arange(20) % 2)}).to(DEVICE)


def drawn() -> Tensor:
    data = environments()
    return Batches(data, [data.split("a", 0)["in"]], 3, torch.Generator(DEVICE).manual_seed(1)).draw()[0]


def augmented() -> Tensor:
    settings = AUGMENTATIONS["domainbed"]
    assert settings is not None
    augmenter = Augmenter(settings, environments(), torch.Generator(DEVICE).manual_seed(1))
    return augmenter(environments().images[:3])


def updated() -> Tensor:
    weight = nn.Parameter(numbers(3, 5))
    optimizer = kernels.adam([weight], 1e-2, (0.9, 0.99), 0.1)
    weight.grad = numbers(3, 5).flip(0)
    optimizer.step()
    return weight.detach()


def convnet() -> Tensor:
    torch.manual_seed(0)
    return build("mnist-cnn", (2, 28, 28), 2).features.to(DEVICE)(numbers(1, 2, 4, 4))


def residual(module: Callable[[], nn.Module], x: Tensor) -> Tensor:
    torch.manual_seed(0)
    layers = module().to(DEVICE, memory_format=torch.channels_last)
    with torch.autocast(DEVICE, torch.bfloat16):
        return layers(x)


def started() -> Tensor:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 64, 7, 2, 3, bias=False).to(DEVICE, memory_format=torch.channels_last)
    with torch.autocast(DEVICE, torch.bfloat16):
        return stem(numbers(1, 3, 9, 8), conv, FrozenBatchNorm2d(64).to(DEVICE))


def measured() -> Tensor:
    """With ties, absent classes, a split of one sample, one without a number, and groups of which some are small."""
    sizes, classes = [150, 1, 40, 5], 19
    logits = (3 * numbers(sum(sizes), classes)).round()
    logits[-5:] = torch.nan
    labels = torch.arange(sum(sizes), device=DEVICE) * 7 % (classes - 2)
    groups = torch.cat([torch.arange(size, device=DEVICE) // 12 for size in sizes])
    return measure(logits.softmax(1), labels, sizes, groups).nan_to_num(-1, posinf=-2)


CASES: dict[str, tuple[Callable[[], Tensor], float]] = {
    # what is computed by the operation of this name, and how close both versions are
    "adam": (updated, 1e-6),
    "augment": (augmented, 1e-5),
    "draw_batch": (drawn, 1e-6),
    "group_norm_convnet": (convnet, 1e-2 if GPU else 1e-5),
    "metrics": (measured, 1e-12),
    "residual_block": (lambda: residual(lambda: BasicBlock(32, 64, 2, FrozenBatchNorm2d), numbers(2, 32, 5, 5)), 2e-2),
    "residual_stage": (
        lambda: residual(
            lambda: Stage(*(BasicBlock(32, 32, 1, FrozenBatchNorm2d) for _ in (1, 2))), numbers(2, 32, 5, 5)
        ),
        3e-2,
    ),
    "resnet_stem": (started, 2e-2),
}


def test_every_operation_is_compared() -> None:
    assert CASES.keys() == VERSIONS.keys()


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_accelerated_versions_equal_the_plain_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, tolerance = CASES[name]
    on_any_device(monkeypatch)
    used: list[str] = []
    version = VERSIONS[name]
    spy = Version(lambda *given: used.append(name) or version.compute(*given), version.applies)
    monkeypatch.setitem(VERSIONS, name, spy)
    ours = compute()
    assert used == [name]
    with kernels.disabled():
        assert close(ours, compute().double(), tolerance) and used == [name]


@pytest.mark.parametrize("name", CASES)
def test_the_switch_turns_every_version_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that claims to apply everywhere; and the switch is on again afterwards, whatever happens."""

    def refuse(*_: object) -> None:
        raise RuntimeError("an accelerated version")

    monkeypatch.setitem(VERSIONS, name, Version(refuse, lambda *_: True))
    compute, _ = CASES[name]
    with kernels.disabled(), kernels.disabled():
        assert compute().isfinite().all()
    with pytest.raises(KeyError), kernels.disabled():
        raise KeyError
    with pytest.raises(RuntimeError, match="an accelerated version"):
        compute()


@pytest.mark.parametrize(("value", "used"), [("0", False), ("1", True), (None, True)])
def test_the_environment_variable_turns_all_off(value: str | None, used: bool) -> None:
    code = (
        "from domainwise.kernels.registry import VERSIONS, Version, accelerated\n"
        "VERSIONS['adam'] = Version(print, lambda *_: True)\n"
        "print(accelerated('adam') is print)"
    )
    environment = {name: text for name, text in os.environ.items() if name != "DOMAINWISE_KERNELS"}
    environment |= {} if value is None else {"DOMAINWISE_KERNELS": value}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(used)


def test_networks_import_no_triton() -> None:
    code = "import sys, domainwise.nets, domainwise.data; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class Operators(TorchDispatchMode):
    """Counts the calls of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = func.name().split("::")
        self.seen[name] += namespace == "domainwise"
        return func(*args, **(kwargs or {}))


def operators(
    name: str, *, precision: str = "bf16", grad: bool = True, change: Callable[[Any], object] = lambda _: None
) -> dict[str, int]:
    """Those of a forward and backward pass through a network of shapes alone, which needs neither Triton nor a GPU."""
    with FakeTensorMode():
        features = build(name, (3, 64, 64), 2).features
        change(features)
        x = torch.empty(66, 3, 64, 64, requires_grad=grad)
        bf16 = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
        with Operators() as mode, torch.set_grad_enabled(grad):
            with bf16:
                y = features(x)
            assert y.shape == (66, features.out_features)
            if grad:
                (slope,) = torch.autograd.grad(y.float().sum(), x)
                assert slope.shape == x.shape
    return {operator: count for operator, count in mode.seen.items() if count}


FORWARD = {
    "resnet18": {"windows": 1, "relu_pool": 1, "fold": 20, "residual": 4, "conv_relu": 6},
    "resnet50": {"windows": 1, "relu_pool": 1, "fold": 53, "residual": 4, "conv_relu": 12},
    "mnist-cnn": {"first_layer": 1, "relu_group_norm": 3},
}


@pytest.mark.parametrize("name", FORWARD)
def test_networks_are_made_of_our_operators_where_these_apply(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert operators(name) == {}, "not on a CPU"
    on_any_device(monkeypatch)
    found = operators(name)
    assert {operator: count for operator, count in found.items() if not operator.endswith("backward")} == FORWARD[name]
    assert any(operator.endswith("backward") for operator in found)
    without = operators(name, grad=False)
    assert "residual" not in without, "it would keep every layer's result for nothing"
    assert sum(without.values()) > 0
    with kernels.disabled():
        assert operators(name) == {}


def test_networks_that_cannot_be_folded_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    on_any_device(monkeypatch)
    assert operators("resnet18", precision="fp32") == operators("resnet18-live") == operators("small-cnn") == {}


@pytest.mark.parametrize(
    ("name", "place", "lost", "reported"),
    [
        ("resnet18", "conv1", {"windows", "relu_pool"}, ["resnet_stem"]),
        ("resnet18", "layer2.1", {"residual"}, ["residual_stage"]),
        ("resnet18", "layer3.1.conv2", {"residual", "fold"}, ["residual_stage", "residual_block"]),
        ("mnist-cnn", "norms.3", {"first_layer", "relu_group_norm"}, ["group_norm_convnet"]),
        ("resnet18", "layer2", set(), []),
    ],
)
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_a_hook_is_called_and_the_logger_says_what_it_changes(
    name: str,
    place: str,
    lost: set[str],
    reported: list[str],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    on_any_device(monkeypatch)
    monkeypatch.setattr(registry, "_reported", set())
    before, called = operators(name), []

    def watch(features: nn.Module) -> None:
        getattr(features.get_submodule(place), kind)(lambda *_: called.append(place))

    caplog.set_level(logging.INFO, logger="domainwise.kernels")
    for _ in range(2):
        after = operators(name, change=watch)
    assert called
    assert {operator for operator in FORWARD[name] if after.get(operator, 0) < before[operator]} >= lost
    assert [message.split(" computes ")[1].split(",")[0] for message in caplog.messages] == reported, "once each"


@needs_triton
@pytest.mark.slow
def test_compiled_code_finds_the_same_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one graph."""
    on_any_device(monkeypatch)
    torch.manual_seed(0)
    stage = Stage(*(BasicBlock(32, 32, 1, FrozenBatchNorm2d) for _ in "ab")).to(DEVICE)
    graphs: list[str] = []

    def backend(graph: Any, _: object) -> Any:
        graphs.append(graph.code)
        return graph.forward

    compiled = torch.compile(deepcopy(stage).forward, fullgraph=True, dynamic=False, backend=backend)
    x = numbers(2, 32, 3, 3)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(compiled(x), stage(x))
        assert "domainwise.residual" in graphs[0] and len(graphs) == 1
        with kernels.disabled():
            assert close(compiled(x), stage(x).double(), 1e-6) and len(graphs) == 2
    assert "domainwise" not in graphs[1]
