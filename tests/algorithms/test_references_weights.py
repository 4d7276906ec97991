"""Flat minima and fine-tuning against straight-line versions in float64; see tests/support/references.py."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from domainwise.algorithms.base import Algorithm
from domainwise.nets.modes import evaluating
from domainwise.nets.network import Network, build
from domainwise.nets.stages import stages
from references import Adam, Step, adam, agree, risk, risks, same_course
from small_problems import CLASSES, advance, batches, make, weights


def mean_risk(twin: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    return sum(risks(twin, x, y)) / len(x)


def ascent(rho: float, alpha: float, both: bool) -> object:
    """A copy of the network stands at the moved weights; the gradients there move the network itself."""

    def reference(twin: Algorithm) -> Step:
        optimiser = adam(twin, twin.network.parameters())

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            here = mean_risk(twin, x, y)
            gradients = torch.autograd.grad(here, list(twin.network.parameters()))
            norm = math.sqrt(sum(float(g.pow(2).sum()) for g in gradients))
            moved = copy.deepcopy(twin)
            with torch.no_grad():
                for p, g in zip(moved.network.parameters(), gradients, strict=True):
                    p += rho * g / norm - alpha * g
            there = mean_risk(moved, x, y)
            further = torch.autograd.grad(there, list(moved.network.parameters()))
            optimiser.apply([a + b for a, b in zip(gradients, further, strict=True)] if both else further)
            return here + there if both else there

        return step

    return reference


def test_sam() -> None:
    same_course("SAM", ascent(0.3, 0.0, both=False), rho=0.3, weight_decay=0.1)


def test_sagm() -> None:
    same_course("SAGM", ascent(0.3, 0.2, both=True), rho=0.3, alpha=0.2, weight_decay=0.1)


def live_network() -> Network:
    """With BatchNorm that learns, and dropout inside and after the features."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3))
    return Network(layers, CLASSES, feature_size=64, dropout=0.5)


def test_sam_without_a_step_up_is_erm_bit_by_bit() -> None:
    """Weights are copied back, not recomputed, and the ascent touches neither statistics nor random numbers."""
    states = []
    for name, hparams in (("ERM", {}), ("SAM", {"rho": 0.0})):
        algorithm = make(name, net=live_network(), **hparams)
        torch.manual_seed(5)
        advance(algorithm, batches(3))
        states.append(algorithm.network.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert states[1]["features.1.num_batches_tracked"] == 3


def test_sam_descends_from_where_it_stood() -> None:
    """With a learning rate of zero the weights are those before, to the last bit, however far the ascent went."""
    algorithm = make("SAM", rho=0.5, lr=0.0)
    before = weights(algorithm)
    (loss,) = advance(algorithm, batches(1))
    assert torch.equal(before, weights(algorithm))
    assert loss > make("ERM").loss(*batches(1)[0]), "the risk is taken at the moved weights"


@pytest.mark.parametrize("strength", [0.1, 5.0])
def test_miro(strength: float) -> None:
    def reference(twin: Algorithm) -> Step:
        start = copy.deepcopy(twin.network.features)
        optimisers = [adam(twin, twin.network.parameters()), Adam(twin.biases, 10 * 0.01, 0.1)]

        def layers(body: nn.Sequential, x: Tensor) -> list[Tensor]:
            hidden = body[2](body[1](body[0](x)))
            return [hidden, body[3](hidden)]

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            loss = mean_risk(twin, x, y)
            images = x.flatten(0, 1)
            pairs = zip(layers(twin.network.features, images), layers(start, images), twin.biases, strict=True)
            for z, z0, bias in pairs:
                variance = (1 + bias.exp()).log() + 1e-5
                bound = variance.log() + (z - z0.detach()) ** 2 / variance
                loss = loss + strength * bound.sum() / bound.numel() / 2
            parts = [list(optimiser.parameters) for optimiser in optimisers]
            gradients = iter(torch.autograd.grad(loss, [p for part in parts for p in part]))
            for optimiser, part in zip(optimisers, parts, strict=True):
                optimiser.apply([next(gradients) for _ in part])
            return loss

        return step

    same_course("MIRO", reference, **{"lambda": strength, "weight_decay": 0.1})


def test_miros_variances_start_at_a_tenth_and_its_copy_is_no_part_of_it() -> None:
    algorithm = make("MIRO")
    agree((nn.functional.softplus(algorithm.biases[0]) + 1e-5, torch.tensor(0.1, dtype=torch.float64)), 1e-7)
    assert [tuple(bias.shape) for bias in algorithm.biases] == [(36,), (5,)]
    assert set(algorithm.state_dict()) == {
        *(f"network.{name}" for name in algorithm.network.state_dict()),
        "biases.0",
        "biases.1",
    }
    advance(algorithm, batches(2))
    start = algorithm._start[0]
    assert torch.equal(start.features[0].weight, make("ERM").network.features[0].weight) and not start.training
    assert not make("MIRO", trainable=False)._start, "a model that predicts has none"


def test_erm_plus_plus() -> None:
    """The head alone before step 2, then everything, with an Adam each."""

    def reference(twin: Algorithm) -> Step:
        head, body = twin.network.classifier, twin.network.features
        first, rest = Adam(head.parameters(), 0.03), adam(twin, twin.network.parameters())

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            loss = sum(risk(lambda images: head(body(images)), x[e], y[e]) for e in range(len(x))) / len(x)
            (first if number < 2 else rest).step(loss)
            return loss

        return step

    same_course("ERMPlusPlus", reference, steps=5, head_steps=2, head_lr=0.03, weight_decay=0.1)


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("small-cnn", [16, 32, 32 * 4]),
        ("digits-cnn", [64, 128 * 1, 1024, 1024]),
        ("mnist-cnn", [64, 128, 128, 128]),
        ("mlp", [390, 390]),
        ("resnet18-scratch", [64, 64, 128, 256, 512]),
        ("resnet50-scratch", [64, 256, 512, 1024, 2048]),
    ],
)
def test_stages_of_every_network_end_in_its_features(name: str, channels: list[int]) -> None:
    network = build(name, (3, 16, 16), 2)
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), evaluating(network):
        outputs, z = network.stages(x)
        assert torch.equal(z, network.represent(x))
    assert [output.shape[1] for output in outputs] == channels


def test_a_network_that_names_no_stages_has_one() -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    outputs, z = stages(Plain(), torch.ones(2, 3))
    assert outputs == [z]
