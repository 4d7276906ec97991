"""What every algorithm is: what one step minimises, and the space of its hyper-parameters.

A batch is x [E, B, ...] and y [E, B]: B samples of each of E training domains. A step never waits for the device (no
`.item()`, no `if` on a tensor, no new constants), so that the engine may capture it whole; what changes over time
happens between steps, in `schedule`, which fills buffers in place.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.errors import UserError
from domainwise.nets import Network
from domainwise.protocol.spaces import ByScale, Choice, Fixed, HParams, LogInteger, LogUniform, Parameter
from domainwise.registry import Registry

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """What an algorithm may know of the data: training domains, classes, input shape, legal range of the input."""

    domains: int
    classes: int
    shape: tuple[int, ...]
    low: Tensor
    high: Tensor


class Algorithm(nn.Module):
    """One decorated subclass per method; most define only `space` and `loss`."""

    space: ClassVar[dict[str, Parameter | ByScale]] = {
        "lr": ByScale(small=LogUniform(-4.5, -2.5, default=1e-3), image=LogUniform(-5, -3.5, default=5e-5)),
        "weight_decay": ByScale(small=Fixed(0.0), image=LogUniform(-6, -2, default=0.0)),
        "batch_size": ByScale(
            small=LogInteger(3, 9, default=64, base=2, minimum=1),
            image=LogInteger(3, 5.5, default=32, base=2, minimum=1),
        ),
        "dropout": ByScale(small=Fixed(0.0), image=Choice((0.0, 0.1, 0.5), default=0.0)),
    }
    needs_domains: ClassVar[int] = 1
    passes: ClassVar[float] = 1.0
    """What one step costs, in forward and backward passes of ERM: for estimates of the time left."""

    def __init__(self, network: Network, problem: Problem, hparams: HParams, noise: torch.Generator) -> None:
        super().__init__()
        if problem.domains < self.needs_domains:
            name = type(self).__name__
            raise UserError(f"{name} needs at least {self.needs_domains} training domains, got {problem.domains}")
        self.network, self.problem, self.noise = network, problem, noise
        self.hparams: dict[str, Any] = dict(hparams)
        self.optimizers = {"network": self.adam(network.parameters())}

    def adam(self, parameters: Any) -> torch.optim.Adam:
        parameters = list(parameters)
        capturable = bool(parameters) and parameters[0].is_cuda
        return torch.optim.Adam(
            parameters,
            lr=self.hparams["lr"],
            weight_decay=self.hparams["weight_decay"],
            fused=True,
            capturable=capturable,
        )

    def schedule(self, step: int) -> None:
        """What happens before step number `step` (from 0), outside the step: fill buffers, restart an optimiser."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One update; returns the loss it descended."""
        loss = self.loss(x, y)
        self.descend(loss)
        return loss.detach()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines neither loss nor step")

    def descend(self, loss: Tensor) -> None:
        optimizer = self.optimizers["network"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def logits(self, x: Tensor) -> Tensor:
        """[E, B, classes]."""
        logits: Tensor = self.network(x.flatten(0, 1))
        return logits.unflatten(0, x.shape[:2])

    def predict(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of inputs [N, ...] from any domain, seen or not."""
        logits: Tensor = self.network(x)
        return logits

    def state(self) -> dict[str, Any]:
        """Everything a later step depends on."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {"modules": self.state_dict(), "optimizers": optimizers, "noise": self.noise.get_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state["modules"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.noise.set_state(state["noise"])


ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm")
A = TypeVar("A", bound=type[Algorithm])


def algorithm(cls: A) -> A:
    """Registers an algorithm under its class name."""
    ALGORITHMS.add(cls.__name__, cls)
    return cls


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Per-sample losses [E, B] of logits [E, B, classes]."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def restart(optimizer: torch.optim.Optimizer) -> None:
    """Forgets an optimiser's moments in place, as if it were new."""
    for state in optimizer.state.values():
        for moment in state.values():
            moment.zero_()
