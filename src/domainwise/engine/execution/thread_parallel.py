"""Threads of a CPU that share the samples of a batch: each computes features and gradients of its own, by itself.

Libraries divide every operation among the threads instead, which wait for one another at the end of each. Where a step
is many short operations, as in bf16, the waiting counts. The gradients of the weights are summed in the order of the
shares, so that a training is repeatable, bit by bit, on as many threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import FlopCounterMode

from domainwise.algorithms.base import Algorithm, Problem
from domainwise.engine.execution.compilation import samples_apart
from domainwise.nets.modes import has_dropout
from domainwise.nets.network import Network

MOST = 2
"""Threads up to which it was found to pay: many would wait for the interpreter's lock."""
WORTH = 2e9
"""Operations of a pass over a share from which it was found to pay."""

T = TypeVar("T")


def share(algorithm: Algorithm, precision: str) -> AbstractContextManager[None]:
    """Within it, threads share the samples of every network of an algorithm, where that pays."""
    threads = torch.get_num_threads()
    if precision != "bf16" or not 1 < threads <= MOST or algorithm.differentiates_twice:
        return nullcontext()
    found = [module.features for module in algorithm.modules() if isinstance(module, Network)]
    if not found or not all(samples_apart(features) and not has_dropout(features) for features in found):
        return nullcontext()
    problem, samples = algorithm.problem, algorithm.problem.domains * int(algorithm.hparams["batch_size"])
    if min(operations(features, problem) for features in found) * samples / threads < WORTH:
        return nullcontext()
    return Sharing(found, threads)


@torch.no_grad()
def operations(features: nn.Module, problem: Problem) -> int:
    """Of a network's pass over one sample; none are known of one that is shown something else than the problem's."""
    with FlopCounterMode(display=False) as counter:
        try:
            features(torch.zeros(1, *problem.shape, dtype=problem.low.dtype))
        except RuntimeError:  # ARM's first layer has further channels
            return 0
    return int(counter.get_total_flops())


class Sharing(AbstractContextManager[None]):
    """Within it, these networks are computed in shares, and all else by this thread alone.

    Threads that help with other operations wait for more by spinning, and shares would make do with what they leave.
    """

    def __init__(self, networks: Sequence[nn.Module], threads: int) -> None:
        self.shares = [Shares(features, threads) for features in networks]
        self.threads = threads

    def __enter__(self) -> None:
        torch.set_num_threads(1)
        for shares in self.shares:
            shares.features.forward = shares

    def __exit__(self, *_: object) -> None:
        for shares in self.shares:
            del shares.features.forward
        torch.set_num_threads(self.threads)


class Shares:
    """The forward pass of a feature network by so many threads."""

    def __init__(self, features: nn.Module, threads: int) -> None:
        self.features, self.threads = features, threads

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) < self.threads:
            return self.alone(x)
        weights = list(self.features.parameters())
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights)):
            features: Tensor = _Shared.apply(self, x, *weights)  # type: ignore[no-untyped-call]
            return features
        return torch.cat(self.compute(self.divide(x), graph=False))

    def alone(self, x: Tensor) -> Tensor:
        """As the network's class computes them."""
        features: Tensor = type(self.features).forward(self.features, x)
        return features

    def divide(self, x: Tensor) -> list[Tensor]:
        """The samples, a share for each thread."""
        return list(x.tensor_split(self.threads))

    def compute(self, divided: list[Tensor], *, graph: bool) -> list[Tensor]:
        """The features of every share. Modes are a thread's own, so that each has to set them."""
        autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

        def one(number: int) -> Tensor:
            with torch.set_grad_enabled(graph), torch.autocast("cpu", dtype, enabled=autocast):
                return self.alone(divided[number])

        return self.each(one)

    def each(self, work: Callable[[int], T]) -> list[T]:
        """What the work gives for every share; the first is this thread's."""
        others = [_helpers(self.threads - 1).submit(work, number) for number in range(1, self.threads)]
        try:
            own = work(0)
        finally:
            wait(others)
        return [own, *(other.result() for other in others)]


@cache
def _helpers(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, "share", initializer=torch.set_num_threads, initargs=(1,))


class _Shared(Function):
    """Features of all samples from those of shares, which keep what their gradients need."""

    @staticmethod
    def forward(ctx: Any, shares: Shares, x: Tensor, *weights: Tensor) -> Tensor:
        inputs = [own.detach().requires_grad_(ctx.needs_input_grad[1]) for own in shares.divide(x)]
        features = shares.compute(inputs, graph=True)
        ctx.shares, ctx.inputs, ctx.weights, ctx.features = shares, inputs, weights, features
        return torch.cat([own.detach() for own in features])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _, of_x, *of_weights = ctx.needs_input_grad
        trained = [weight for weight, wanted in zip(ctx.weights, of_weights, strict=True) if wanted]
        gradients = ctx.shares.divide(gradient)

        def one(number: int) -> tuple[Tensor | None, ...]:
            wanted = [ctx.inputs[number], *trained] if of_x else trained
            # the graph is kept as long as ours is: who asks for gradients a second time may have them
            return torch.autograd.grad(
                ctx.features[number], wanted, gradients[number], retain_graph=True, allow_unused=True
            )

        slopes = ctx.shares.each(one)
        of_inputs = torch.cat([found[0] for found in slopes]) if of_x else None
        sums = iter([_sum(parts) for parts in zip(*(found[of_x:] for found in slopes), strict=True)])
        return None, of_inputs, *(next(sums) if wanted else None for wanted in of_weights)


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    """In order; a weight that no share has used has no gradient."""
    used = [part for part in parts if part is not None]
    return sum(used[1:], used[0]) if used else None
