"""The networks: shapes, key names, strides, frozen and live BatchNorm, and what the algorithms ask of them."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm, Problem
from domainwise.core.errors import UserError
from domainwise.nets import NETWORKS, pretrained_weights
from domainwise.nets.modes import is_per_sample
from domainwise.nets.network import Network, build
from domainwise.protocol import spaces
from small_problems import CLASSES, advance, batches, make, weights

BLOCKS = {"18": (2, 2, 2, 2), "50": (3, 4, 6, 3)}
SIZES = {"18": 512, "50": 2048}
WITHOUT_HEAD = {"18": 11_176_512, "50": 23_508_032}
"""Parameters of torchvision's networks, 11,689,512 and 25,557,032, less those of their last layer."""
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def depth(name: str) -> str:
    return name.removeprefix("resnet")[:2]


def torchvision_keys(name: str) -> set[str]:
    keys = {"conv1.weight"} | {f"bn1.{part}" for part in NORM}
    for stage, count in enumerate(BLOCKS[depth(name)], 1):
        for number in range(count):
            block = f"layer{stage}.{number}"
            for i in range(1, 3 if depth(name) == "18" else 4):
                keys |= {f"{block}.conv{i}.weight"} | {f"{block}.bn{i}.{part}" for part in NORM}
            if number == 0 and (stage > 1 or depth(name) == "50"):
                keys |= {f"{block}.downsample.0.weight"} | {f"{block}.downsample.1.{part}" for part in NORM}
    return keys


def reference(name: str, state: dict[str, Tensor], x: Tensor, *, stride_first: bool) -> Tensor:
    """The same network as plain functions of a state dict, BatchNorm by its formula."""

    def unit(x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        kernel = state[f"{conv}.weight"]
        x = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        weight, bias, mean, var = (state[f"{norm}.{part}"].view(-1, 1, 1) for part in NORM[:4])
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    x = F.max_pool2d(unit(x, "conv1", "bn1", 2).relu(), 3, 2, 1)
    for stage, count in enumerate(BLOCKS[depth(name)], 1):
        for number in range(count):
            block, stride = f"layer{stage}.{number}", 2 if stage > 1 and number == 0 else 1
            convolutions = 2 if depth(name) == "18" else 3
            strided = 1 if depth(name) == "18" or stride_first else 2
            y = x
            for i in range(1, convolutions + 1):
                y = unit(y, f"{block}.conv{i}", f"{block}.bn{i}", stride if i == strided else 1)
                y = y.relu() if i < convolutions else y
            if f"{block}.downsample.0.weight" in state:
                x = unit(x, f"{block}.downsample.0", f"{block}.downsample.1", stride)
            x = (x + y).relu()
    return x.mean(dim=(2, 3))


RESNETS = [name for name in NETWORKS if name.startswith("resnet")]


def trained(name: str, channels: int = 3, size: int = 64) -> torch.nn.Module:
    """A network in float64 whose BatchNorms hold statistics, as after a training."""
    torch.manual_seed(0)
    net = NETWORKS[name]((channels, size, size)).double()
    for key, value in net.state_dict().items():
        if "running" in key or ".bn" in key or "downsample.1" in key:
            value.copy_(torch.rand_like(value.double()) + 0.5)
    return net


def test_the_contract_of_names() -> None:
    assert {name: start for name in NETWORKS if (start := pretrained_weights(name))} == {
        "resnet18": "resnet18",
        "resnet18-live": "resnet18",
        "resnet50": "resnet50",
        "resnet50-live": "resnet50",
        "resnet50-v1": "resnet50-v1",
        "resnet50-augmix": "resnet50-augmix",
        "resnet50-augmix-live": "resnet50-augmix",
    }
    assert {"resnet18-scratch", "resnet50-scratch", "digits-cnn"} < set(NETWORKS)


@pytest.mark.parametrize("name", RESNETS)
def test_keys_and_sizes_are_torchvisions(name: str) -> None:
    with torch.device("meta"):
        net = NETWORKS[name]((3, 224, 224))
    assert set(net.state_dict()) == torchvision_keys(name)
    assert sum(p.numel() for p in net.parameters()) == WITHOUT_HEAD[depth(name)]
    assert net.out_features == SIZES[depth(name)]


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet50-v1"])
def test_resnets_compute_what_the_paper_says(name: str) -> None:
    net, x = trained(name), torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        ours, theirs = net(x), reference(name, net.state_dict(), x, stride_first=name.endswith("v1"))
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    if name != "resnet18":
        other = reference(name, net.state_dict(), x, stride_first=not name.endswith("v1"))
        assert not torch.allclose(ours, other, rtol=1e-3), "the strides matter"


def test_frozen_batchnorm_keeps_statistics_and_trains_scale_and_shift() -> None:
    frozen, live = trained("resnet18"), trained("resnet18-live")
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    for net in (frozen, live):
        before = {key: value.clone() for key, value in net.state_dict().items()}
        fresh = net(x)
        assert torch.equal(fresh, net.train()(x)), "new networks are in training mode"
        net(x).sum().backward()
        after = net.state_dict()
        learnt = any(not torch.equal(before[key], after[key]) for key in before if "running" in key)
        assert learnt == (net is live)
        assert net.bn1.weight.grad.abs().sum() > 0 and net.layer4[1].bn2.bias.grad.abs().sum() > 0
    with torch.no_grad():
        assert torch.equal(frozen.train()(x), frozen.eval()(x))
        assert not torch.allclose(live.train()(x), live.eval()(x))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_any_number_of_channels_from_scratch(channels: int) -> None:
    net = build("resnet18-scratch", (channels, 28, 28), 10)
    assert net(torch.randn(2, channels, 28, 28)).shape == (2, 10)


def test_digits_network_is_the_protocols() -> None:
    net = build("digits-cnn", (3, 32, 32), 10)
    shapes = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    assert shapes == [(64, 3, 5, 5), (128, 64, 5, 5), (1024, 3200), (1024, 1024), (10, 1024)]
    z = net.represent(torch.randn(2, 3, 32, 32))
    assert z.shape == (2, 1024) and z.min() == 0


def problem(name: str, network: Network, shape: tuple[int, ...], **hparams: object) -> Algorithm:
    method = ALGORITHMS[name]
    space = spaces.at_scale(method.space, "image")
    values = spaces.override(space, spaces.draw(space, 0, 0), {"batch_size": 2, **hparams}, name)
    low, high = torch.full((shape[0], 1, 1), -2.0), torch.full((shape[0], 1, 1), 2.0)
    facts = Problem((20, 20), network.classes, shape, low, high)
    return method(network, facts, values, torch.Generator().manual_seed(2))


class Unused(nn.Sequential):
    """Features with a layer that takes no part."""

    out_features = 72

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(72, 72))
        self.idle = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self[1](self[0](x))


class Fixed(nn.Flatten):
    """Features that do not learn."""

    out_features = 72


@pytest.mark.parametrize("features", [Unused, Fixed])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "ARM"])
def test_methods_train_what_learns_of_networks_of_which_part_does_not(name: str, features: type[nn.Module]) -> None:
    if (name, features) == ("SagNet", Fixed):
        with pytest.raises(UserError, match="has no trainable features"):
            make(name, net=Network(features(), CLASSES))
        return
    torch.manual_seed(0)
    algorithm = make(name, net=Network(features(), CLASSES), lr=0.01)
    before = weights(algorithm)
    assert all(bool(loss.isfinite()) for loss in advance(algorithm, batches(2)))
    assert not torch.equal(weights(algorithm), before)


def test_arm_gives_a_resnet_a_channel_that_starts_as_a_copy() -> None:
    network = build("resnet18", (3, 32, 32), 3)
    kernel = network.features.conv1.weight.detach().clone()
    arm = problem("ARM", network, (3, 32, 32))
    wide = network.features.conv1.weight
    assert torch.equal(wide[:, :3], kernel) and torch.equal(wide[:, 3], kernel[:, 0])
    x, y = torch.randn(2, 2, 3, 32, 32), torch.randint(0, 3, (2, 2))
    assert torch.isfinite(arm.step(x, y))
    assert not torch.equal(network.features.conv1.weight[:, 3], kernel[:, 0]), "it is trained"
    assert arm.eval().predict(x[0]).shape == (2, 3)


@pytest.mark.parametrize("name", ["resnet18", "resnet18-live"])
def test_eps_zero_is_erm_bit_by_bit_on_a_resnet(name: str) -> None:
    states = []
    for method in ("ERM", "DAT"):
        torch.manual_seed(0)
        network = build(name, (3, 32, 32), 3, dropout=0.5)
        algorithm = problem(method, network, (3, 32, 32), **({"eps": 0.0} if method == "DAT" else {}))
        torch.manual_seed(1)
        for _ in range(2):
            algorithm.step(torch.rand(2, 2, 3, 32, 32), torch.randint(0, 3, (2, 2)))
        states.append(network.state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_the_page_on_networks_names_them_all_and_its_own_network_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "networks.md").read_text()
    assert all(f"`{name}`" in page for name in NETWORKS)
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "strided" in block)
    monkeypatch.chdir(tmp_path)
    try:
        exec(code, {"__name__": "page"})
    finally:
        NETWORKS._things.pop("strided", None)
    assert 0 <= float(capsys.readouterr().out) <= 1


def test_the_old_name_of_per_sample_is_still_heard_with_a_warning() -> None:
    net = nn.Flatten()
    assert not is_per_sample(net)
    net.samples_apart = True
    with pytest.warns(DeprecationWarning, match="per_sample"):
        assert is_per_sample(net)
