"""Wasserstein-robust training: worst cases at a cost per distance, not inside a ball."""

from typing import Any

import torch
from torch import Tensor

from domainwise.algorithms.base import Draw, algorithm, cross_entropy
from domainwise.algorithms.risk import ERM
from domainwise.nets.modes import no_side_effects
from domainwise.protocol.spaces import ByScale, Fixed, LogInteger, LogUniform, Uniform


@algorithm
class WRM(ERM):
    """Worst case at a cost: mean_e E_e max_x' [loss(x') - gamma |x' - x|^2], ten steps of plain gradient ascent.

    Paper: Sinha et al. 2018, https://arxiv.org/abs/1710.10571.
    Note: there is no ball and no clamp; the inner step is at most 1 / (2 gamma), so that the cost does not overshoot.
    Try it: when small, smooth changes of the input are expected.
    """

    reads_inputs = True
    passes = 11.0
    steps = 10
    space = ERM.space | {
        "inner_lr": LogUniform(-2, -1, default=0.05),
        "gamma": LogUniform(-0.5, 0.5, default=1.0),
    }

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        gamma = self.hparams["gamma"]
        rate = min(self.hparams["inner_lr"], 1 / (2 * gamma)) if gamma > 0 else self.hparams["inner_lr"]
        moved = x
        for _ in range(self.steps):
            moved = moved.detach().requires_grad_()
            with no_side_effects(self.network):
                objective = self.losses(moved, y).sum() - gamma * (moved - x).square().sum()
            moved = moved.detach() + rate * torch.autograd.grad(objective, moved)[0]
        return self.risks(moved, y).mean()


@algorithm
class ADA(ERM):
    """A training set that grows by its worst cases: max_x' [CE(x') - gamma |z(x') - z(x)|^2], appended `phases` times.

    Paper: Volpi et al. 2018, https://arxiv.org/abs/1805.12018.
    Note: every `min_steps` steps, ten plain gradient-ascent steps on mean cross-entropy - gamma * mean squared
    difference of the last hidden features, from a sample of the current training set. The growth is capped: `memory`
    images per domain in all, an equal share of them in every phase, each drawn as often as any original image.
    Try it: with a single training domain.
    """

    reads_inputs = True
    needs_features = True
    begins_at = "min_steps"
    steps = 10
    space = ERM.space | {
        "ascent_lr": LogUniform(-1, 0.5, default=1.0),
        "gamma": Uniform(0.5, 1.5, default=1.0),
        "min_steps": LogInteger(0.5, 2.5, default=100, minimum=1),
        "phases": LogInteger(0.5, 2, default=6),
        "memory": ByScale(
            small=Fixed(2048, whole=True, minimum=1, maximum=10**6),
            image=Fixed(256, whole=True, minimum=1, maximum=10**6),
        ),
    }

    sizes: Tensor
    grown: Tensor
    memory_x: Tensor
    memory_y: Tensor
    domain: Tensor

    def setup(self) -> None:
        super().setup()
        domains, memory = self.problem.domains, self.hparams["memory"]
        low = self.problem.low
        zeros = low.new_zeros(domains, memory, *self.problem.shape)
        self.register_buffer("sizes", torch.tensor(self.problem.sizes, dtype=torch.int64).view(-1, 1), persistent=False)
        self.register_buffer("domain", torch.arange(domains).view(-1, 1), persistent=False)
        self.register_buffer("grown", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("memory_x", zeros, persistent=False)
        self.register_buffer("memory_y", torch.zeros(domains, memory, dtype=torch.int64), persistent=False)
        self.filled = 0

    def schedule(self, step: int, draw: Draw) -> None:
        super().schedule(step, draw)
        phase, rest = divmod(step, self.hparams["min_steps"])
        if rest or not 1 <= phase <= self.hparams["phases"]:
            return
        share = self.hparams["memory"] // self.hparams["phases"]
        target = min(self.filled + max(1, share), self.hparams["memory"])
        start = self.filled
        while start < target:
            x, y = self.mix(*draw())
            worst = self.worst_case(x, y)
            end = min(start + x.shape[1], target)
            self.memory_x[:, start:end] = worst[:, : end - start]
            self.memory_y[:, start:end] = y[:, : end - start]
            start = end
        self.filled = target
        self.grown.fill_(target)

    def worst_case(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad(), no_side_effects(self.network):
            origin = self.represent(x)
        for _ in range(self.steps):
            x = x.detach().requires_grad_()
            with no_side_effects(self.network):
                z = self.represent(x)
                loss = cross_entropy(self.classify(z), y).mean()
            objective = loss - self.hparams["gamma"] * (z - origin).square().mean()
            x = x.detach() + self.hparams["ascent_lr"] * torch.autograd.grad(objective, x)[0]
        return x

    def mix(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Replaces each image by one from the memory with probability grown / (size + grown): uniform on the union."""
        number = self.random(*y.shape, dtype=torch.float64) * (self.sizes + self.grown)
        index = (number - self.sizes).long().clamp_min(0)
        original = number < self.sizes
        mixed_x = torch.where(original.view(*y.shape, *[1] * (x.ndim - 2)), x, self.memory_x[self.domain, index])
        return mixed_x, torch.where(original, y, self.memory_y[self.domain, index])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return super().loss(*self.mix(x, y))

    def state(self) -> dict[str, Any]:
        filled = {"x": self.memory_x[:, : self.filled].clone(), "y": self.memory_y[:, : self.filled].clone()}
        memory = {"filled": self.filled, **filled}  # cloned: a view would save all of the memory
        return super().state() | {"memory": memory}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        memory = state["memory"]
        self.filled = memory["filled"]
        self.grown.fill_(self.filled)
        self.memory_x[:, : self.filled] = memory["x"].to(self.memory_x)
        self.memory_y[:, : self.filled] = memory["y"].to(self.memory_y.device)
