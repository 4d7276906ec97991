"""A run's network and algorithm from their names: for a training, and for a trained model."""

from collections.abc import Sequence

import torch

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm, Problem
from domainwise.core.errors import UserError
from domainwise.data.preprocessing import Preprocessing
from domainwise.nets.network import Network, build
from domainwise.protocol.spaces import HParams


def make_network(name: str, problem: Problem, hparams: HParams, precision: str) -> Network:
    """The network with fresh weights; one that cannot read the problem's vectors is a UserError."""
    dropout = float(hparams["dropout"] or 0)
    if len(problem.shape) == 3:
        net = build(name, problem.shape, problem.classes, dropout=dropout, precision=precision)
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net
    try:
        net = build(name, problem.shape, problem.classes, dropout=dropout, precision=precision)
        with torch.no_grad():
            net.eval()(torch.zeros(1, *problem.shape))
    except (RuntimeError, ValueError, IndexError, TypeError):
        raise UserError(f"network {name!r} cannot read vectors of {problem.shape[0]} numbers: use mlp") from None
    net.train()
    return net


def make_predictor(
    algorithm: str,
    network: str,
    hparams: HParams,
    preprocessing: Preprocessing,
    sizes: Sequence[int],
    precision: str = "fp32",
) -> Algorithm:
    """An algorithm in eval mode whose weights are still to be loaded; it has no optimisers and cannot be trained.

    `sizes` are the numbers of training samples per domain. The caller's random state is unchanged.
    """
    low, high = preprocessing.low, preprocessing.high
    problem = Problem(tuple(sizes), len(preprocessing.classes), preprocessing.shape, low, high)
    with torch.random.fork_rng(devices=[]):
        net = make_network(network, problem, hparams, precision)
        noise = torch.Generator(low.device)
        return ALGORITHMS[algorithm](net, problem, hparams, noise, trainable=False).eval()
