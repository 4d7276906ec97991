"""Averaged weights beside those of a training, which they do not change (see `protocol.averages`).

One flat copy of all parameters on the device, and one operation on it in every step, inside the captured one. How much
a step counts is a number on the device, which the host fills before the step and never reads. Buffers of the algorithm
are not averaged: averaged weights come with the buffers of the last step, and with BatchNorm statistics of their own
(see `engine.batch_norm`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from domainwise.core.flat_layout import FlatLayout
from domainwise.engine.batch_norm import estimated_statistics
from domainwise.protocol.averages import AveragedSteps, first_step, share_of_step
from domainwise.protocol.runs import Run

FreshBatches = Callable[[], Iterable[Tensor]]
"""The same few training batches at every call, from a random stream of their own."""


class WeightAverage:
    """The average of a training's weights so far: a moving one, or a subclass's."""

    def __init__(self, run: Run, algorithm: Algorithm, batches: FreshBatches) -> None:
        self.run, self.algorithm, self.batches = run, algorithm, batches
        self.parameters = [parameter for parameter in algorithm.parameters() if parameter.requires_grad]
        self.layout = FlatLayout(self.parameters)
        self.mean = self._current()
        self.share = self.mean.new_ones(())

    def schedule(self, step: int) -> None:
        """Before a step, outside of it."""
        self.share.fill_(share_of_step(self.run.average, self._after_first_phase(step)))

    @torch.no_grad()
    def update(self) -> None:
        """After the weights have changed, inside of the step."""
        self.mean.lerp_(self._current(), self.share)

    def validated_at(self, step: int) -> bool:  # noqa: ARG002 (other averages need validations)
        """Whether `observe` wants the validation loss after this step."""
        return False

    def observe(self, step: int, loss: float) -> None:
        """The mean loss on held-out samples of the training domains after a step."""

    def evaluated_at(self, step: int) -> bool:
        """Whether the averaged weights are evaluated after this step."""
        return self.run.evaluated_at(step)

    def steps(self, step: int, selected: bool) -> AveragedSteps:
        """What the average after a step is the average of; `selected` if validation has chosen that step."""
        first = self.algorithm.first_phase + first_step(self.run.average, self._after_first_phase(step))
        return AveragedSteps(self.run.average, min(first, step), step, step, selected)

    def _after_first_phase(self, step: int) -> int:
        """The number of a step among those after the algorithm's first phase."""
        return max(0, step - self.algorithm.first_phase)

    def value(self) -> Tensor:
        """The averaged weights, flat."""
        return self.mean

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it, the algorithm has the averaged weights and fitting statistics; after it, its own again.

        Everything is copied in place and in the order of the device's stream, so that graphs may be replayed within it.
        """
        last = self._current()
        self._assign(self.value())
        try:
            with estimated_statistics(self.algorithm, self.batches()):
                yield
        finally:
            self._assign(last)

    def state_dict(self) -> dict[str, Tensor]:
        """The algorithm's, with the averaged weights; a copy."""
        with self.applied():
            return {name: value.detach().clone() for name, value in self.algorithm.state_dict().items()}

    def tensors(self) -> Iterator[Tensor]:
        """All tensors that steps or observations change."""
        yield self.mean

    def state(self) -> dict[str, Any]:
        """Everything later averages depend on."""
        return {"mean": self.mean}

    def load_state(self, state: dict[str, Any]) -> None:
        self.mean.copy_(state["mean"])

    def _current(self) -> Tensor:
        return self.layout.joined(parameter.detach() for parameter in self.parameters)

    @torch.no_grad()
    def _assign(self, flat: Tensor) -> None:
        for parameter, value in zip(self.parameters, self.layout.views(flat), strict=True):
            parameter.copy_(value)
