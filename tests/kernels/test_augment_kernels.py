"""Augmentation by Triton kernels against plain PyTorch in float64: interpreted on a CPU, or as they are on a GPU."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, library

import domainwise as dw
from domainwise import kernels
from domainwise.data.augment import Augmenter
from domainwise.data.augmentations import AUGMENTATIONS
from domainwise.engine.execution.compilation import compiled
from domainwise.kernels.augment import ATTEMPTS, HUE, NUMBERS
from domainwise.nets.network import Network
from kernel_problems import DEVICE, GPU, needs_triton

pytestmark = [pytest.mark.gpu] if GPU else []
SLOW = "takes minutes unless a GPU does it"
ORDER, GREY, FLIP = slice(-9, -5), -1, -10


def augmenter(name: str, images: Tensor, device: str = DEVICE) -> Augmenter:
    labels = torch.zeros(len(images), dtype=torch.int64)
    data = dw.Environments.from_arrays(
        {"a": (images, labels)}, classes=["x"], mean=[0.5, 0.4, 0.3], std=[0.2, 0.25, 0.3]
    )
    return Augmenter(AUGMENTATIONS[name], data.to(device), torch.Generator(device))


@pytest.fixture(autouse=True)
def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.augment, "on_gpu", lambda _: True)


def problem(count: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Images, with grey and saturated places, and uniform numbers."""
    random = torch.Generator().manual_seed(count)
    images = torch.randint(256, (max(count, 5), 3, *size), dtype=torch.uint8, generator=random)
    images[:, :, 0] = images[:, :1, 0]
    images[:, 1, :, 0] = 0
    return images, torch.rand(len(images), sum(NUMBERS), generator=random)


@contextmanager
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def reference(name: str, images: Tensor, numbers: Tensor) -> Tensor:
    with in_float64(), kernels.disabled():
        return augmenter(name, images, "cpu").augment(images, numbers.double())


def wrong(name: str, images: Tensor, numbers: Tensor) -> float:
    """How far the kernels are from float64, at most."""
    ours = augmenter(name, images).augment(images.to(DEVICE), numbers.to(DEVICE))
    assert ours.dtype == torch.float32 and ours.is_contiguous(memory_format=torch.channels_last)
    expected = reference(name, images, numbers)
    assert expected.dtype == torch.float64
    return (ours.cpu() - expected).abs().max().item()


@needs_triton
@pytest.mark.parametrize("size", [(9, 6), pytest.param((224, 224), marks=pytest.mark.skipif(not GPU, reason=SLOW))])
def test_every_order_flipped_or_not_grey_or_not(size: tuple[int, int]) -> None:
    orders = list(itertools.permutations([0.1, 0.3, 0.6, 0.9]))
    images, numbers = problem(len(orders), size)
    numbers[:, ORDER] = torch.tensor(orders)
    numbers[:, FLIP] = torch.arange(len(orders)) % 2
    numbers[:, GREY] = (torch.arange(len(orders)) % 5 > 0).float()
    assert wrong("domainbed", images, numbers) < 1e-5


@needs_triton
@pytest.mark.parametrize("size", [(5, 7), (33, 40), (1, 1), (3, 40)])
def test_any_shape(size: tuple[int, int]) -> None:
    """More pixels than a block; fewer than a warp; one; and boxes that rarely fit."""
    assert wrong("oodbench", *problem(6, size)) < 1e-5


@needs_triton
@pytest.mark.parametrize("number", [0.0, 0.99999994])
def test_the_ends_of_every_range(number: float) -> None:
    images, numbers = problem(5, (16, 24))
    assert wrong("domainbed", images, torch.full_like(numbers, number)) < 1e-5


@needs_triton
@pytest.mark.parametrize("size", [(224, 224), (40, 60)])
def test_the_table_holds_the_parameters(size: tuple[int, int]) -> None:
    from domainwise.kernels import augment_triton

    images, numbers = problem(5, size)
    numbers = torch.rand(100, numbers.shape[1], generator=torch.Generator().manual_seed(1))
    numbers[:10, : 2 * ATTEMPTS] = 1.0
    net = augmenter("domainbed", images)
    settings = net.augmentation
    shares = (settings.flip, settings.grey)
    table = augment_triton.table(
        numbers.to(DEVICE), net.spread, settings.scale, settings.ratio, shares, net.central, size
    ).cpu()
    plain = augmenter("domainbed", images, "cpu").parameters(numbers)
    boxes, flips, grey, contrast, kinds, values = table.split(augment_triton.COLUMNS, 1)
    assert torch.equal(boxes, plain.boxes) and len(boxes[:10].unique(dim=0)) == 1
    assert torch.equal(flips[:, 0], plain.flips) and torch.equal(grey[:, 0], plain.late[:, 3, 1])
    assert torch.equal(kinds, numbers[:, ORDER].argsort(1).float()) and (kinds.gather(1, contrast.long()) == 1).all()
    turns = kinds == HUE
    assert torch.equal(turns.int().argmax(1), plain.counts) and torch.allclose(values[turns], plain.turns)


@needs_triton
def test_a_batch_of_domains_stays_a_view_for_the_network() -> None:
    images, _ = problem(6, (5, 7))
    net = augmenter("domainbed", images)
    x = net(images.to(DEVICE).unflatten(0, (2, 3)))
    flat = x.flatten(0, 1)
    assert x.shape == (2, 3, 3, 5, 7) and flat.data_ptr() == x.data_ptr()
    assert flat.contiguous(memory_format=torch.channels_last).data_ptr() == x.data_ptr()


@needs_triton
def test_repeated_to_the_bit_and_from_any_memory_format() -> None:
    images, numbers = (t.to(DEVICE) for t in problem(5, (30, 40)))
    net = augmenter("domainbed", images.cpu())
    first = net.augment(images, numbers)
    assert torch.equal(first, net.augment(images, numbers))
    assert torch.equal(first, net.augment(images.contiguous(memory_format=torch.channels_last), numbers))


@needs_triton
def test_torch_is_told_the_truth_about_it() -> None:
    images, numbers = (t.to(DEVICE) for t in problem(5, (5, 7)))
    net = augmenter("domainbed", images.cpu())
    settings, constants = net.augmentation, (net.spread, net.mean, net.std)
    given = (images, numbers, *constants, settings.scale, settings.ratio, (settings.flip, settings.grey), net.central)
    library.opcheck(torch.ops.domainwise.augment, given, test_utils=("test_schema", "test_faketensor"))


@needs_triton
def test_what_has_kernels_of_its_own_is_not_compiled() -> None:
    images, _ = problem(5, (5, 7))
    net = augmenter("domainbed", images)
    features = torch.nn.Flatten()
    with compiled(Network(features, 2, feature_size=105), net):
        assert "augment" not in vars(net)
    with kernels.disabled(), compiled(Network(features, 2, feature_size=105), net):
        assert "augment" in vars(net)


@needs_triton
@pytest.mark.skipif(GPU, reason="the GPU compiles them itself")
@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, since this one interprets them."""
    code = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from domainwise.kernels import augment_triton as kernels
constants = dict(HEIGHT=224, WIDTH=224, BLOCK=1024, BLOCKS=64)
for kernel in (kernels._table_kernel, kernels._sum_kernel, kernels._write_kernel):
    kinds = {name: "*u8" if name == "images_at" else "*fp32" if name.endswith("_at") else
             "i32" if name.startswith("central") else "fp32" for name in kernel.arg_names}
    known = {name: value for name, value in constants.items() if name in kinds}
    signature = kinds | dict.fromkeys(known, "constexpr")
    built = compile(ASTSource(kernel, signature=signature, constexprs=known), target=GPUTarget("cuda", 90, 32))
    assert built.asm["cubin"]
"""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    subprocess.run([sys.executable, "-c", code], check=True)
