"""The penalties that IRM and linearised adversarial training put on one domain (paper, Section 3).

    Penalty_IRM  = |d/dw R(w f) at w=1|^2        Penalty_AT   = E |grad_x loss|*
    Penalty_LDAT = E <grad_x loss, x>            Penalty_DAT  = |E grad_x loss|*

|.|* is the dual of the ball's norm: itself for l2, l1 for l_inf. Penalty_LDAT is the linearised gain of delta = x; the
paper's delta = eps x multiplies it by eps.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.risk import scale_derivative
from domainwise.core.seeds import permutation
from domainwise.engine.session import Session
from domainwise.protocol.records import PenaltyRecord

SAMPLES = 512
"""Training images per domain on which penalties are measured, the same at every step of every run of a trial."""

LogitsFunction = Callable[[Tensor], Tensor]
"""A network: inputs [N, ...] -> logits [N, classes]."""


def input_gradients(logits: LogitsFunction, x: Tensor, y: Tensor) -> Tensor:
    """grad_x loss of every sample, [N, ...]."""
    x = x.detach().requires_grad_()
    (gradients,) = torch.autograd.grad(F.cross_entropy(logits(x), y, reduction="sum"), x)
    return gradients


def dual_norm(v: Tensor, ball: str) -> Tensor:
    """Of every row of [N, ...]: |v|_2 for the l2 ball, |v|_1 for the l_inf ball."""
    return torch.linalg.vector_norm(v.flatten(1), ord={"l2": 2, "linf": 1}[ball], dim=1)


def penalty_irm(logits: LogitsFunction, x: Tensor, y: Tensor) -> Tensor:
    return scale_derivative(logits(x)[None], y[None]).mean().square()


def penalty_at(logits: LogitsFunction, x: Tensor, y: Tensor, ball: str = "l2") -> Tensor:
    return dual_norm(input_gradients(logits, x, y), ball).mean()


def penalty_dat(logits: LogitsFunction, x: Tensor, y: Tensor, ball: str = "l2") -> Tensor:
    return dual_norm(input_gradients(logits, x, y).mean(0, keepdim=True), ball)[0]


def penalty_ldat(logits: LogitsFunction, x: Tensor, y: Tensor) -> Tensor:
    return (input_gradients(logits, x, y) * x).flatten(1).sum(1).mean()


@dataclass(frozen=True)
class Penalties:
    """The four penalties on one domain's samples."""

    irm: float
    at: float
    dat: float
    ldat: float


def penalties(logits: LogitsFunction, x: Tensor, y: Tensor, chunk: int = 128) -> Penalties:
    """The four penalties in the l2 geometry, in chunks, so that any number of samples fits."""
    slope, length, product = (x.new_zeros((), dtype=torch.float64) for _ in range(3))
    gradient = torch.zeros_like(x[0])
    for inputs, labels in zip(x.split(chunk), y.split(chunk), strict=True):
        with torch.no_grad():
            slope += scale_derivative(logits(inputs)[None], labels[None]).sum()
        gradients = input_gradients(logits, inputs, labels)
        length += dual_norm(gradients, "l2").sum()
        product += (gradients * inputs).sum()
        gradient += gradients.sum(0)
    n = len(x)
    total = gradient.double().norm()
    irm, at, dat, ldat = torch.stack([(slope / n).square(), length / n, total / n, product / n]).tolist()
    return Penalties(irm, at, dat, ldat)


def track_penalties(session: Session, step: int) -> list[PenaltyRecord]:
    """The penalties on clean training images of every training domain, in eval mode."""
    run, environments, algorithm = session.run, session.environments, session.algorithm
    algorithm.eval()
    records = []
    for number, domain in enumerate(run.train_domains):
        rows = environments.split(domain, run.trial, run.held_out)["in"]
        rows = rows[permutation(len(rows), "track", run.trial, domain)][:SAMPLES].to(environments.device)
        images, y = environments.gather(rows)
        measured = penalties(partial(algorithm.predict, domain=number), environments.normalise(images), y)
        records.append(PenaltyRecord(run.id, step, domain, **asdict(measured)))
    algorithm.train()
    return records
