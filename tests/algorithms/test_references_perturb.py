"""Perturbed and growing training sets against straight-line versions; see tests/support/references.py."""

import pytest
import torch
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from references import (
    SIZES,
    Step,
    adam,
    agree,
    climb,
    compare,
    descending,
    gradient_at,
    noise,
    risk,
    risks,
    same_course,
    small_sets,
)
from small_problems import advance, batches, make


@pytest.mark.parametrize(("gamma", "rate", "stable"), [(1.0, 0.05, 0.05), (20.0, 0.05, 0.025), (0.3, 0.9, 0.9)])
def test_wrm(gamma: float, rate: float, stable: float) -> None:
    def wrm(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        total = 0.0
        for e in range(len(x)):
            for i in range(len(x[e])):
                origin, label = x[e, i : i + 1], y[e, i : i + 1]
                moved = origin
                for _ in range(10):
                    moved = moved.clone().requires_grad_()
                    worth = risk(twin.network, moved, label) - gamma * (moved - origin).pow(2).sum()
                    moved = (moved + stable * torch.autograd.grad(worth, moved)[0]).detach()
                total = total + risk(twin.network, moved, label)
        return total / y.numel()

    same_course("WRM", descending(wrm), steps=3, gamma=gamma, inner_lr=rate)


ASCENT = {"eps": 0.7, "alpha": 0.4, "weight_decay": 0.1}


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize(("name", "settings"), [("DAT", {"update": "literal"}), ("EnsembleUAT", {})])
def test_one_update_per_domain(name: str, settings: dict[str, str], norm: str) -> None:
    """DAT read literally moves one network by one Adam, domain after domain; the ensemble a member and an Adam each."""

    def reference(twin: Algorithm) -> Step:
        nets = list(twin.network.members) if name == "EnsembleUAT" else [twin.network] * 3
        optimisers = [adam(twin, net.parameters()) for net in nets]
        optimisers = optimisers if name == "EnsembleUAT" else optimisers[:1] * 3

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            total = 0.0
            for e, (net, optimiser) in enumerate(zip(nets, optimisers, strict=True)):
                delta = twin.delta[e, 0].clone()
                delta = climb(delta, gradient_at(net, x[e], y[e], delta), 0.7, 0.4, norm)
                twin.delta[e, 0] = delta
                loss = risk(net, (x[e] + delta).clamp(0, 1), y[e])
                optimiser.step(loss)
                total = total + loss.detach() / len(x)
            return total

        return step

    same_course(name, reference, norm=norm, **ASCENT, **settings)


def test_ensemble_predicts_by_the_mean_probability() -> None:
    algorithm = make("EnsembleUAT", lr=0.05)
    advance(algorithm, batches(3))
    x = batches(1, seed=9)[0][0][0]
    probabilities = sum(member(x).softmax(1) for member in algorithm.network.members) / 3
    agree((algorithm.predict(x).softmax(1).detach(), probabilities.detach()))
    agree((algorithm.predict(x).exp().detach(), probabilities.detach()))  # the logits are logarithms of it


def test_ada_saves_what_it_remembers_and_not_all_the_room_for_it() -> None:
    algorithm = make("ADA", min_steps=2, phases=2, memory=12)
    for steps, remembered in ((2, 0), (3, 6)):
        advance(algorithm, batches(steps))
        images = algorithm.state()["memory"]["x"]
        assert images.shape[:2] == (3, remembered) and images.untyped_storage().nbytes() == images.nbytes


def test_ada() -> None:
    """Phases before steps 2 and 4, each of two draws (4 + 2 images per domain); steps draw from sets and memory."""
    settings = {"min_steps": 2, "phases": 2, "memory": 12, "ascent_lr": 5.0, "gamma": 0.8, "lr": 0.01}
    algorithm, twin = (small_sets(make("ADA", **settings)) for _ in range(2))
    optimiser, stream, fresh = adam(twin, twin.parameters()), noise(), batches(9, seed=11)
    remembered: list[list[tuple[Tensor, Tensor]]] = [[], [], []]

    def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y, u = x.clone(), y.clone(), torch.rand(y.shape, generator=stream, dtype=torch.float64)
        for e, size in enumerate(SIZES):
            for i in range(len(x[e])):
                pick = float(u[e, i]) * (size + len(remembered[e]))
                if pick >= size:
                    x[e, i], y[e, i] = remembered[e][int(pick - size)]
        return x, y

    def worst(x: Tensor, y: Tensor) -> Tensor:
        body, head = twin.network.features, twin.network.classifier
        origin = body(x.flatten(0, 1)).detach()
        for _ in range(10):
            x = x.clone().requires_grad_()
            z = body(x.flatten(0, 1))
            worth = risk(head, z, y.flatten()) - 0.8 * (z - origin).pow(2).sum() / z.numel()
            x = (x + 5.0 * torch.autograd.grad(worth, x)[0]).detach()
        return x

    drawn = {"algorithm": iter(fresh), "reference": iter(fresh)}
    for number, (x, y) in enumerate(batches(8)):
        if number in (2, 4):
            parts = []
            for wanted in (4, 2):
                chosen, labels = mixed(*next(drawn["reference"]))
                parts.append((worst(chosen, labels), labels, wanted))
            for moved, labels, wanted in parts:
                for e, images in enumerate(remembered):
                    images += list(zip(moved[e, :wanted], labels[e, :wanted], strict=True))
        algorithm.schedule(number, lambda: next(drawn["algorithm"]))
        loss = algorithm.step(x, y)
        seen, labels = mixed(x, y)
        assert number < 2 or not torch.equal(seen, x), "some images are remembered ones"
        expected = sum(risks(twin, seen, labels)) / 3
        optimiser.step(expected)
        compare(algorithm, twin, (loss, expected), number)
    for e, images in enumerate(remembered):
        agree((algorithm.memory_x[e, :12], torch.stack([image for image, _ in images])))
        assert algorithm.memory_y[e, :12].tolist() == [int(label) for _, label in images]
    assert len(list(drawn["algorithm"])) == len(list(drawn["reference"])) == 5
