"""The base class of all algorithms: the loss that one step minimises, and the space of its hyper-parameters.

A batch is x [E, B, ...] and y [E, B]: B samples of each of E training domains. A step never waits for the device (no
`.item()`, no `if` on a tensor, no new constants) and has fixed shapes, so that the engine can capture it whole. Changes
over time happen between steps, in `schedule`, which fills buffers in place or chooses the next step's phase.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import Unsuited, UserError
from domainwise.kernels import adam
from domainwise.nets.modes import has_live_batch_norm
from domainwise.nets.network import Network
from domainwise.protocol.spaces import ByScale, Choice, Fixed, HParams, LogInteger, LogUniform, Parameter

Batch = tuple[Tensor, Tensor]
Draw = Callable[[], Batch]

LR = ByScale(small=LogUniform(-4.5, -2.5, default=1e-3), image=LogUniform(-5, -3.5, default=5e-5))
WEIGHT_DECAY = ByScale(small=Fixed(0.0), image=LogUniform(-6, -2, default=0.0))
LARGEST_BATCH = 10**6


def batch_size(minimum: int) -> ByScale:
    """Images per domain and step."""
    return ByScale(
        small=LogInteger(3, 9, default=64, base=2, minimum=minimum, maximum=LARGEST_BATCH),
        image=LogInteger(3, 5.5, default=32, base=2, minimum=minimum, maximum=LARGEST_BATCH),
    )


@dataclass(frozen=True)
class Problem:
    """The properties of the data that an algorithm may use."""

    sizes: tuple[int, ...]  # images of each training domain
    classes: int
    shape: tuple[int, ...]  # of one input
    low: Tensor  # legal range of the input, per channel; its device and dtype are those of the algorithm
    high: Tensor

    @property
    def domains(self) -> int:
        return len(self.sizes)


class Algorithm(nn.Module):
    """One decorated subclass per method; most define only `space` and `loss`, some `setup` for buffers and modules."""

    space: ClassVar[dict[str, Parameter | ByScale]] = {
        "lr": LR,
        "weight_decay": WEIGHT_DECAY,
        "batch_size": batch_size(minimum=1),
        "dropout": ByScale(small=Fixed(0.0, maximum=1.0), image=Choice((0.0, 0.1, 0.5), default=0.0, maximum=1.0)),
    }
    needs_domains: ClassVar[int] = 1
    needs_features: ClassVar[bool] = False
    batch_dependent: ClassVar[bool] = False
    """Whether a prediction depends on its batch; evaluation then uses batches of one domain, of the training size."""
    differentiates_twice: ClassVar[bool] = False
    """Whether the loss contains gradients of the network: compiled code cannot be differentiated twice."""
    moves_features: ClassVar[bool] = False
    """Whether all it adds to a simpler method (most often ERM) happens in the features: frozen, they leave that one."""
    begins_at: ClassVar[str] = ""
    """The hyper-parameter that names the step before which it is ERM; empty for none."""
    reads_inputs: ClassVar[bool] = False
    """Whether a step uses inputs other than by their features: then features alone cannot replace the inputs."""
    replaces_layers: ClassVar[bool] = False
    """Whether `setup` replaces layers of the network, which then no longer fit together as they were given."""
    changes_input_layer: ClassVar[bool] = False
    """Whether `setup` changes the first layer of the network, so that it reads more than an image."""
    weight_average: ClassVar[str] = ""
    """The average of weights that belongs to the method (`protocol.averages`); a run may choose another."""
    domain_by_domain: ClassVar[bool] = False
    """Whether a BatchNorm that learns sees one domain at a time, as in DomainBed's code of the method."""
    passes: ClassVar[float] = 1.0
    """The cost of one step relative to ERM's (a forward and a backward pass), to estimate times: about the median over
    small and large networks that `benchmarks/method_costs.py` measures."""

    def __init__(
        self,
        network: nn.Module,
        problem: Problem,
        hparams: HParams,
        noise: torch.Generator,
        *,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.check_domains(hparams, problem.domains)
        if self.needs_features and not isinstance(network, Network):
            kind = type(network).__name__
            raise UserError(
                f"{name} needs a network with separable features: wrap {kind} as Network(features, classes)"
            )
        self.network: Any = network
        self.problem, self.noise = problem, noise
        self.hparams: dict[str, Any] = dict(hparams)
        self.phase = "train"
        self.trainable = trainable
        self.setup()
        self.to(problem.low.device, problem.low.dtype)
        if problem.low.is_cuda:
            for module in self.modules():
                if isinstance(module, nn.Conv2d):  # the layout in which a GPU reads weights and writes gradients
                    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizers = self.make_optimizers() if trainable else {}  # a model that only predicts needs none

    @classmethod
    def check_domains(cls, hparams: HParams, domains: int) -> None:  # noqa: ARG003 (for methods that divide them)
        """Raises Unsuited if the method needs more training domains."""
        if domains < cls.needs_domains:
            raise Unsuited(f"{cls.__name__} needs at least {cls.needs_domains} training domains, got {domains}")

    @classmethod
    def check_steps(cls, hparams: HParams, steps: int) -> None:
        """Raises Unsuited if a run of so many steps ends before all of the method has begun."""

    @property
    def first_phase(self) -> int:
        """The number of steps that prepare the training: averages of weights begin after them."""
        return 0

    def setup(self) -> None:
        """Registers buffers and further modules."""

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"network": self.adam(self.parameters())}

    def adam(
        self,
        parameters: Iterable[nn.Parameter],
        lr: str | float = "lr",
        weight_decay: str | float = "weight_decay",
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> torch.optim.Adam:
        """Adam for the parameters that learn, with the hyper-parameters of these names, or these values."""
        rate, decay = (self.hparams[value] if isinstance(value, str) else value for value in (lr, weight_decay))
        learning = [parameter for parameter in parameters if parameter.requires_grad]
        networks = (module for module in self.network.modules() if isinstance(module, Network))
        known = {parameter: factor for one in networks for parameter, factor in one.rate_factors.items()}
        return adam(learning, rate, betas, decay, [known.get(one, 1.0) for one in learning] if known else None)

    def schedule(self, step: int, draw: Draw) -> None:
        """Changes before step number `step` (from 0), outside the step; `draw` draws further batches."""

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One update; returns the loss it descended."""
        return self.descend(self.loss(x, y), "network")

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines neither loss nor step")

    def descend(self, loss: Tensor, *names: str) -> Tensor:
        """One step of the named optimisers down a loss, which is returned detached."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for name in names:
            self.optimizers[name].step()
        return loss.detach()

    def logits(self, x: Tensor) -> Tensor:
        """[E, B, classes]."""
        return self.apply_to_domains(self.network, x, self.domain_by_domain)

    def represent(self, x: Tensor) -> Tensor:
        """Features [E, B, F]."""
        return self.apply_to_domains(self.network.represent, x, self.domain_by_domain)

    def apply_to_domains(self, function: Callable[[Tensor], Tensor], x: Tensor, domain_by_domain: bool) -> Tensor:
        """A function of samples [N, ...] applied to [E, B, ...].

        All domains in one pass; with `domain_by_domain` in one pass each, in order, if a BatchNorm learns.
        """
        if domain_by_domain and has_live_batch_norm(self.network):
            return torch.stack([function(of_domain) for of_domain in x])
        return function(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def classify(self, z: Tensor) -> Tensor:
        """Logits [E, B, classes] of features [E, B, F]."""
        return self.network.classify(z)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Per-sample losses [E, B]."""
        return cross_entropy(self.logits(x), y)

    def risks(self, x: Tensor, y: Tensor) -> Tensor:
        """R_e, the domains' average losses [E]."""
        return self.losses(x, y).mean(1)

    def predict(self, x: Tensor, domain: int | None = None) -> Tensor:  # noqa: ARG002 (some algorithms use the domain)
        """Logits [N, classes] of inputs [N, ...] of one domain: a training domain's number, None for an unseen one."""
        return self.network(x)

    def embed(self, x: Tensor) -> Tensor:
        """The classifier's inputs for single samples [N, ...]: features [N, F], or the logits of a plain module."""
        return getattr(self.network, "represent", self.network)(x)

    def state(self) -> dict[str, Any]:
        """Everything later steps depend on."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {"modules": self.state_dict(), "optimizers": optimizers, "noise": self.noise.get_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state["modules"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.noise.set_state(state["noise"])

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Uniform random numbers from the algorithm's random stream."""
        low = self.problem.low
        return torch.rand(shape, generator=self.noise, device=low.device, dtype=dtype or low.dtype)

    def shuffle(self, n: int) -> Tensor:
        """A random permutation of n numbers, from the algorithm's random stream."""
        return self.random(n, dtype=torch.float64).argsort()


A = TypeVar("A", bound=type[Algorithm])


def algorithm(cls: A) -> A:
    """Registers an algorithm under its class name."""
    ALGORITHMS.add(cls.__name__, cls)
    return cls


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Per-sample losses [E, B] of logits [E, B, classes]."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def restart(optimizer: torch.optim.Optimizer) -> None:
    """Sets an optimiser's moments to zero in place, as if it were new."""
    for state in optimizer.state.values():
        for moment in state.values():
            moment.zero_()
