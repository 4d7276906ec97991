"""Risks, meta-learning and mixing against straight-line versions in float64; see tests/support/references.py."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from references import Step, adam, descending, noise, risk, risks, same_course, shuffled
from small_problems import SHAPE, features, make


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_erm(decay: float) -> None:
    same_course("ERM", descending(lambda twin, x, y, _: sum(risks(twin, x, y)) / len(x)), weight_decay=decay)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_vrex(decay: float) -> None:
    def vrex(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        weight = 7.0 if number >= 2 else 1.0
        twin.weight.fill_(weight)
        values = risks(twin, x, y)
        mean = sum(values) / len(x)
        return mean + weight * sum((value - mean) ** 2 for value in values) / len(x)

    same_course("VREx", descending(vrex, restart_at=2), steps=5, penalty=7.0, anneal=2, weight_decay=decay)


def test_group_dro() -> None:
    q = [1 / 3] * 3

    def group_dro(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        values = risks(twin, x, y)
        for e in range(3):
            q[e] *= math.exp(0.5 * values[e].item())
        q[:] = [weight / sum(q) for weight in q]
        twin.q.copy_(torch.tensor(q, dtype=torch.float64))
        return sum(weight * value for weight, value in zip(q, values, strict=True))

    same_course("GroupDRO", descending(group_dro), steps=5, eta=0.5)


def test_ldat() -> None:
    def ldat(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        weight = 3.0 if number >= 2 else 1.0
        twin.weight.fill_(weight)
        total = 0.0
        for e in range(len(x)):
            slope = 0.0
            for i in range(len(x[e])):
                one = x[e, i : i + 1].clone().requires_grad_()
                (gradient,) = torch.autograd.grad(risk(twin.network, one, y[e, i : i + 1]), one, create_graph=True)
                slope = slope + (gradient * one.detach()).sum() / len(x[e])
            total = total + risk(twin.network, x[e], y[e]) + weight * slope**2
        return total / len(x)

    same_course("LDAT", descending(ldat, restart_at=2), penalty=3.0, anneal=2)


@pytest.mark.parametrize("alpha", [0.2, 2.0])
def test_mixup(alpha: float) -> None:
    stream = noise()

    def mixup(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        ring, total = shuffled(len(x), stream), 0.0
        gammas = torch._standard_gamma(torch.full((2, len(x)), alpha, dtype=torch.float64), generator=stream)
        for place, i in enumerate(ring):
            j = ring[(place + 1) % len(ring)]
            share = float(gammas[0, place] / (gammas[0, place] + gammas[1, place]))
            mixed = share * x[i] + (1 - share) * x[j]
            total = total + share * risk(twin.network, mixed, y[i]) + (1 - share) * risk(twin.network, mixed, y[j])
        return total / len(x)

    same_course("Mixup", descending(mixup), alpha=alpha)


@pytest.mark.parametrize("tested", [0, 1, 2])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_mldg(decay: float, tested: int) -> None:
    """In a ring, or tested on the last domains of the random order, each of the others on one of them in turn."""
    stream = noise()

    def reference(twin: Algorithm) -> Step:
        parameters = list(twin.network.parameters())
        optimiser = adam(twin, parameters)

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            ring, total, loss = shuffled(len(x), stream), [torch.zeros_like(p) for p in parameters], 0.0
            for place, i in enumerate(ring[: len(ring) - tested]):
                j = ring[len(ring) - tested + place % tested] if tested else ring[(place + 1) % len(ring)]
                near = risk(twin.network, x[i], y[i])
                gradients = torch.autograd.grad(near, parameters)
                clone = copy.deepcopy(twin.network)
                adam(twin, clone.parameters()).apply(gradients)
                far = risk(clone, x[j], y[j])
                meta = torch.autograd.grad(far, list(clone.parameters()))
                total = [t + (g + 2.5 * m) / len(ring) for t, g, m in zip(total, gradients, meta, strict=True)]
                loss = loss + (near + 2.5 * far) / len(ring)
            optimiser.apply(total)
            return loss

        return step

    same_course("MLDG", reference, beta=2.5, weight_decay=decay, **({"meta_test": tested} if tested else {}))


def test_mldg_pairs_every_domain_trained_on_with_those_tested_on_in_turn() -> None:
    pairs = {tested: make("MLDG", domains=5, meta_test=tested).pairs(5) for tested in (1, 2, 3)}  # type: ignore[operator]
    assert pairs == {1: [(0, 4), (1, 4), (2, 4), (3, 4)], 2: [(0, 3), (1, 4), (2, 3)], 3: [(0, 2), (1, 3)]}
    assert make("MLDG", domains=3).pairs(3) == [(0, 1), (1, 2), (2, 0)]  # type: ignore[operator]
    with pytest.raises(UserError, match="meta_test=3 of 3 training domains leave none to train on"):
        make("MLDG", domains=3, meta_test=3)


def batch_norm(norm: nn.BatchNorm2d, h: Tensor) -> Tensor:
    """Normalised by the batch's own statistics, which also move the running ones."""
    n = h.numel() / h.shape[1]
    mean = h.sum((0, 2, 3)) / n
    centred = h - mean.view(1, -1, 1, 1)
    var = centred.pow(2).sum((0, 2, 3)) / n
    with torch.no_grad():
        norm.running_mean.copy_(0.9 * norm.running_mean + 0.1 * mean)
        norm.running_var.copy_(0.9 * norm.running_var + 0.1 * var * n / (n - 1))
        norm.num_batches_tracked += 1
    scale = norm.weight / (var + 1e-5).sqrt()
    return centred * scale.view(1, -1, 1, 1) + norm.bias.view(1, -1, 1, 1)


def test_arm() -> None:
    def arm(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        first, norm1, _, second, norm2, _, third = twin.context
        h = batch_norm(norm1, F.conv2d(x.flatten(0, 1), first.weight, first.bias, padding=2)).clamp_min(0)
        h = batch_norm(norm2, F.conv2d(h, second.weight, second.bias, padding=2)).clamp_min(0)
        h = F.conv2d(h, third.weight, third.bias, padding=2).unflatten(0, x.shape[:2])
        assert first.weight.shape[:2] == (64, SHAPE[0]) and second.weight.shape == (64, 64, 5, 5)
        total = 0.0
        for e in range(len(x)):
            context = sum(h[e]) / len(x[e])
            seen = torch.stack([torch.cat([image, context]) for image in x[e]])
            total = total + risk(twin.network, seen, y[e])
        return total / len(x)

    same_course("ARM", descending(arm), steps=3)
    narrow, wide = features()[0].weight.double(), make("ARM").network.features[0].weight
    assert torch.equal(wide[:, :2], narrow) and torch.equal(wide[:, 2], narrow[:, 0])
