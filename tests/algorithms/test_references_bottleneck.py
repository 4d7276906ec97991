"""Bottlenecks against straight-line versions in float64; see tests/support/references.py."""

import pytest
import torch
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from references import Step, adam, descending, risk, same_course


def variance(z: Tensor) -> Tensor:
    """Of every feature over the samples, without bias; the mean over the features."""
    mean = sum(z) / len(z)
    return (sum((one - mean) ** 2 for one in z) / (len(z) - 1)).sum() / z.shape[1]


def scale_slope(logits: Tensor, y: Tensor) -> Tensor:
    """d/dw of the risk of w * logits, at w = 1."""
    w = torch.ones((), dtype=logits.dtype, requires_grad=True)
    return torch.autograd.grad(risk(lambda z: w * z, logits, y), w, create_graph=True)[0]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_ib_erm(decay: float) -> None:
    def ib_erm(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        twin.weight.fill_(7.0 if number >= 2 else 0.0)
        total = 0.0
        for e in range(len(x)):
            z = twin.network.features(x[e])
            total = total + risk(twin.network.classifier, z, y[e])
            if number >= 2:
                total = total + 7.0 * variance(z)
        return total / len(x)

    same_course("IB_ERM", descending(ib_erm, restart_at=2), penalty=7.0, anneal=2, weight_decay=decay)


@pytest.mark.parametrize(("anneal", "ib_anneal"), [(1, 3), (3, 1), (2, 2)])
def test_ib_irm(anneal: int, ib_anneal: int) -> None:
    def reference(twin: Algorithm) -> Step:
        optimiser = adam(twin, twin.parameters())

        def step(x: Tensor, y: Tensor, number: int) -> Tensor:
            if number in (anneal, ib_anneal):
                optimiser.restart()
            irm, ib = (5.0 if number >= anneal else 1.0), (7.0 if number >= ib_anneal else 0.0)
            twin.weight.fill_(irm)
            twin.ib_weight.fill_(ib)
            total = 0.0
            for e in range(len(x)):
                z = twin.network.features(x[e])
                logits = twin.network.classifier(z)
                product = scale_slope(logits[::2], y[e][::2]) * scale_slope(logits[1::2], y[e][1::2])
                total = total + (risk(lambda z: z, logits, y[e]) + irm * product + ib * variance(z)) / len(x)
            optimiser.step(total)
            return total

        return step

    settings = {"penalty": 5.0, "anneal": anneal, "ib_penalty": 7.0, "ib_anneal": ib_anneal}
    same_course("IB_IRM", reference, steps=5, **settings)
