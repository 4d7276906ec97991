"""Devices and precisions: what is asked for and not there is one clear line."""

from pathlib import Path

import pytest
import torch

import domainwise as dw
from domainwise.engine import devices
from domainwise.nets.network import build

CPU = torch.device("cpu")


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.pick_device("auto") == CPU
    with pytest.raises(dw.UserError, match="no CUDA device found"):
        devices.pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.pick_device("auto").type == "cuda" and devices.pick_device("cpu") == CPU


@pytest.mark.parametrize("here", [False, True], ids=["no GPU here", "a GPU here"])
def test_auto_is_tf32_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here)
    assert devices.pick_precision("auto", "cpu") == "fp32"
    assert devices.pick_precision("auto", "auto") == ("tf32" if here else "fp32")
    assert devices.pick_precision("auto", "cuda") == "tf32", "a cluster's login node may have none"
    assert devices.pick_precision("bf16", "cpu") == "bf16"
    with pytest.raises(dw.UserError, match="unknown precision 'fp8'"):
        devices.pick_precision("fp8", "cpu")


def test_tf32_is_refused_on_a_cpu(tmp_path: Path) -> None:
    run = dw.plan("BackgroundDigits", "ERM", [0], steps=1, precision="tf32")
    with pytest.raises(dw.UserError, match="this cpu has no TF32: use fp32"):
        dw.train(run, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists(), "nothing half-written"


def test_bf16_is_refused_where_the_hardware_lacks_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "_has_bf16", lambda _: False)
    devices.check_precision("fp32", CPU)
    run = dw.plan("BackgroundDigits", "ERM", [0], steps=1, precision="bf16")
    with pytest.raises(dw.UserError, match="this cpu has no bf16 arithmetic: use fp32"):
        dw.train(run, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists(), "nothing half-written"


def test_bf16_trains_to_about_the_same(tmp_path: Path) -> None:
    if not devices._has_bf16(CPU):
        pytest.skip("this CPU has no bf16 arithmetic")
    losses = {}
    for precision in ("fp32", "bf16"):
        run = dw.plan("BackgroundDigits", "DAT", [0], hparams={"batch_size": 8}, steps=30, precision=precision)
        losses[precision] = dw.train(run, tmp_path, device="cpu").records[-1].loss
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)


def test_the_mnist_net_in_bf16_computes_what_it_computes_in_float64() -> None:
    """Outputs, every gradient, and every gradient of a penalty on the image's gradient, to bf16's precision."""
    torch.manual_seed(0)
    x = torch.rand(6, 2, 28, 28)
    seen = {}
    for precision, dtype in (("fp32", torch.float64), ("bf16", torch.float32)):
        torch.manual_seed(1)
        network = build("mnist-cnn", (2, 28, 28), 2, precision=precision).to(memory_format=torch.channels_last)
        parameters = list(network.to(dtype).features.parameters())
        images = x.to(dtype).requires_grad_()
        z = network.represent(images)
        first = torch.autograd.grad(z.square().sum(), [images, *parameters], retain_graph=True)
        (slope,) = torch.autograd.grad(z.square().sum(), images, create_graph=True)
        second = torch.autograd.grad((slope * images.detach()).sum(), parameters)
        seen[precision] = [z, *first, *second]
    for ours, exact in zip(seen["bf16"], seen["fp32"], strict=True):
        part = 0.15 if exact.shape == x.shape else 0.02  # an image's gradient takes each ReLU's flips one by one
        assert (ours - exact).norm() <= part * exact.norm()
