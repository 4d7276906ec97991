"""Meta-learning: methods that minimise the risk after adapting, to another domain or to a batch."""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from domainwise.algorithms.base import LARGEST_BATCH, algorithm, batch_size
from domainwise.algorithms.risk import ERM
from domainwise.core.errors import Unsuited, UserError
from domainwise.nets.modes import frozen_running_stats
from domainwise.protocol.spaces import Added, Fixed, HParams, LogUniform


@algorithm
class MLDG(ERM):
    """A step on one domain should help another: mean over a ring (i, j) of grad R_i(theta) + beta grad R_j(theta').

    theta' is theta after one fresh Adam step on R_i.

    Paper: Li et al. 2018, https://arxiv.org/abs/1710.03463.
    Note: first order, with a random ring of (meta-train, meta-test) pairs every step, as in DomainBed until April 2022.
    With `meta_test` = k it is as in DomainBed since: every step draws k domains for the test, and each of the others is
    paired with one of them, in turn; the sum is still divided by the number of domains. Unlike in DomainBed BatchNorm
    learns from the meta-train passes. The loss returned is mean R_i + beta R_j.
    Try it: with many training domains.
    """

    needs_domains = 2
    passes = 3.0
    space = ERM.space | {
        "beta": LogUniform(-1, 1, default=1.0),
        "meta_test": Added(0, whole=True, maximum=1000),
    }

    @classmethod
    def check_domains(cls, hparams: HParams, domains: int) -> None:
        super().check_domains(hparams, domains)
        if (tested := meta_test_domains(hparams)) >= domains:
            raise Unsuited(
                f"MLDG: meta_test={tested} of {domains} training domains leave none to train on: set fewer",
                argument="hparams",
            )

    def setup(self) -> None:
        super().setup()
        self.meta_test = meta_test_domains(self.hparams)

    def pairs(self, domains: int) -> list[tuple[int, int]]:
        """The places (meta-train, meta-test) in a step's random order of the domains."""
        if not self.meta_test:
            return [(i, (i + 1) % domains) for i in range(domains)]
        trained = domains - self.meta_test
        return [(i, trained + i % self.meta_test) for i in range(trained)]

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        ring = self.shuffle(len(x))
        x, y = x[ring], y[ring]
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        parameters = list(trained.values())
        rates = {p: group["lr"] for group in self.optimizers["network"].param_groups for p in group["params"]}
        total = [torch.zeros_like(p) for p in parameters]
        losses = []
        for i, j in self.pairs(len(x)):
            train_risk = self.risks(x[i : i + 1], y[i : i + 1]).mean()
            gradients = torch.autograd.grad(train_risk, parameters, materialize_grads=True)
            fast = [self.first_adam_step(p, g, rates[p]) for p, g in zip(parameters, gradients, strict=True)]
            with frozen_running_stats(self.network):
                logits = functional_call(self.network, dict(zip(trained, fast, strict=True)), (x[j],))
            test_risk = nn.functional.cross_entropy(logits, y[j])
            meta = torch.autograd.grad(test_risk, fast, materialize_grads=True)
            for sum_, g, m in zip(total, gradients, meta, strict=True):
                sum_ += (g + self.hparams["beta"] * m) / len(x)
            losses.append(train_risk.detach() + self.hparams["beta"] * test_risk.detach())
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient
        self.optimizers["network"].step()
        return torch.stack(losses).sum() / len(x)

    def first_adam_step(self, parameter: Tensor, gradient: Tensor, lr: float | Tensor) -> Tensor:
        """The parameter after the first step of a new Adam, whose direction is g / (|g| + 1e-8)."""
        decayed = gradient + self.hparams["weight_decay"] * parameter.detach()
        return (parameter.detach() - lr * decayed / (decayed.abs() + 1e-8)).requires_grad_()


def meta_test_domains(hparams: HParams) -> int:
    """The number of domains that a step tests on; 0 for a ring."""
    return int(hparams.get("meta_test") or 0)


@algorithm
class ARM(ERM):
    """The network sees its batch: mean_e R_e of f([x, c_e]), c_e = the batch mean of a context network's output.

    Paper: ARM-CML of Zhang et al. 2021, https://arxiv.org/abs/2007.02931.
    Note: c_e is one more input channel, whose slice of the first convolution starts as a copy of the first; the context
    network is trained with the rest, as in the paper (DomainBed's optimiser leaves it out). A prediction depends on its
    batch, which must come from one domain. The context network works at full resolution, with as many multiplications
    as a ResNet: with a small network it takes nearly all of a step's time.
    Try it: when test images come in groups from one domain, and the group shows how to interpret them.
    """

    needs_features = True
    moves_features = True
    replaces_layers = True
    changes_input_layer = True
    batch_dependent = True
    passes = 4.0
    space = ERM.space | {
        "batch_size": replace(batch_size(minimum=1), image=Fixed(8, whole=True, minimum=1, maximum=LARGEST_BATCH)),
    }

    def setup(self) -> None:
        super().setup()
        if len(self.problem.shape) != 3:
            raise UserError(f"ARM needs images [channels, height, width], not inputs of shape {self.problem.shape}")
        channels = self.problem.shape[0]
        widen_first_convolution(self.network.features)
        self.context = nn.Sequential(
            nn.Conv2d(channels, 64, 5, padding=2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 1, 5, padding=2),
        )

    def logits(self, x: Tensor) -> Tensor:
        context = self.context(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1, keepdim=True)
        return super().logits(torch.cat([x, context.expand(*x.shape[:2], -1, -1, -1)], 2))

    def predict(self, x: Tensor, domain: int | None = None) -> Tensor:  # noqa: ARG002 (the batch identifies the domain)
        return self.logits(x[None])[0]

    def embed(self, x: Tensor) -> Tensor:  # noqa: ARG002 (it always raises)
        raise UserError("ARM's features depend on the batch: a single sample has none")


def widen_first_convolution(features: nn.Module) -> None:
    """Adds an input channel to the first convolution; its weights start as a copy of the first channel's."""
    convolutions = ((name, module) for name, module in features.named_modules() if isinstance(module, nn.Conv2d))
    name, first = next(convolutions, (None, None))
    if name is None or first is None:
        raise UserError(f"ARM needs a network that begins with a convolution; {type(features).__name__} has none")
    wide = copy.deepcopy(first)
    wide.in_channels += 1
    wide.weight = nn.Parameter(torch.cat([first.weight, first.weight[:, :1]], 1).detach())
    parent, _, child = name.rpartition(".")
    setattr(features.get_submodule(parent), child, wide)
