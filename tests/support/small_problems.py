"""Small problems in float64, for tests."""

from typing import Any

import torch
from torch import Tensor

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm, Problem
from domainwise.nets.network import Network
from domainwise.protocol import spaces

SHAPE = (2, 6, 6)
CLASSES = 3


def quick(name: str) -> dict[str, Any]:
    """Hyper-parameters of a method with which three steps and batches of eight are a training."""
    return {"batch_size": 8} | ({"head_steps": 2} if name == "ERMPlusPlus" else {})


def features(seed: int = 0, channels: int = SHAPE[0]) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(channels, 4, 3, stride=2, padding=1),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 5),
    )
    net.out_features = 5
    return net


def make(
    name: str,
    *,
    domains: int = 3,
    net: Network | None = None,
    dtype: torch.dtype = torch.float64,
    trainable: bool = True,
    **hparams: Any,
) -> Algorithm:
    """The algorithm on a small problem, always from the same weights."""
    method = ALGORITHMS[name]
    space = spaces.at_scale(method.space, "small")
    values = spaces.override(space, spaces.draw(space, 0, 0), {"batch_size": 4, **hparams}, name)
    network = (net if net is not None else Network(features(), CLASSES)).to(dtype)
    torch.manual_seed(1)
    low, high = torch.zeros(SHAPE[0], 1, 1, dtype=dtype), torch.ones(SHAPE[0], 1, 1, dtype=dtype)
    problem = Problem((50,) * domains, CLASSES, SHAPE, low, high)
    return method(network, problem, values, torch.Generator().manual_seed(2), trainable=trainable)


def batches(
    steps: int, *, domains: int = 3, size: int = 4, dtype: torch.dtype = torch.float64, seed: int = 3
) -> list[tuple[Tensor, Tensor]]:
    """Batches in [0, 1] whose classes differ in their mean image, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.rand(CLASSES, *SHAPE, generator=generator, dtype=dtype)
    result = []
    for _ in range(steps):
        y = torch.randint(0, CLASSES, (domains, size), generator=generator)
        x = (patterns[y] + torch.rand(domains, size, *SHAPE, generator=generator, dtype=dtype)) / 2
        result.append((x, y))
    return result


def advance(algorithm: Algorithm, data: list[tuple[Tensor, Tensor]], first: int = 0) -> list[Tensor]:
    losses = []
    for number, (x, y) in enumerate(data, first):
        algorithm.schedule(number, lambda: data[0])
        losses.append(algorithm.step(x, y))
    return losses


def risk(algorithm: Algorithm, x: Tensor, y: Tensor) -> float:
    """The mean cross-entropy of the algorithm's own predictions on a batch."""
    algorithm.eval()
    with torch.no_grad():
        logits = torch.stack([algorithm.predict(x[e], e) for e in range(len(x))])
    algorithm.train()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()))


def weights(algorithm: Algorithm) -> Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.network.parameters()])
