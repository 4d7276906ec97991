"""A run's network from its name: for a training, and for a model that was saved."""

import torch

from domainwise.algorithms.base import Problem
from domainwise.core.errors import UserError
from domainwise.nets.network import Network, build
from domainwise.protocol.spaces import HParams


def make_network(name: str, problem: Problem, hparams: HParams, precision: str) -> Network:
    """With fresh weights, and able to read the problem's inputs: few networks can read vectors."""
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
