"""SWAD (Cha et al. 2021, https://arxiv.org/abs/2102.08604): the mean of every step's weights in a valley of the loss.

Validations divide a training into segments; the loss at a segment's last step is the segment's. The average runs from
the first step of the segment at which the valley starts to the last step of the one at which it ends (see
`protocol.loss_valley`). It is known when the training ends, and evaluated then, once.

Memory is bounded: before the start, the segments that may still turn out to be it and the mean of all earlier ones;
after it, one mean of what counts and one of what counts only if the loss returns below the limit.
"""

import operator
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from domainwise.engine.averaging import FreshBatches, WeightAverage
from domainwise.protocol.averages import SWAD_SHARE, AveragedSteps
from domainwise.protocol.loss_valley import CONVERGED, LossValley
from domainwise.protocol.runs import Run


@dataclass
class Segment:
    """The mean of the weights of consecutive steps."""

    mean: Tensor
    first: int
    last: int

    @torch.no_grad()
    def extend(self, later: "Segment") -> None:
        """Adds the steps that follow."""
        count = self.last - self.first + 1
        added = later.last - later.first + 1
        self.mean.lerp_(later.mean, added / (count + added))
        self.last = later.last


def validation_interval(run: Run) -> int:
    """Steps between validations: a sixth of those between evaluations."""
    return max(1, run.evaluate_every // SWAD_SHARE)


class SwadAverage(WeightAverage):
    """`mean` is that of the open segment, the steps since the last validation."""

    def __init__(self, run: Run, algorithm: Algorithm, batches: FreshBatches) -> None:
        super().__init__(run, algorithm, batches)
        self.valley = LossValley()
        self.opened = 0  # the first step of the open segment
        self.latest = -1  # the last step made
        self.settled: Segment | None = None
        """Before the start, everything before the open questions; after it, what counts in any case."""
        self.pending: list[Segment] = []
        """Later segments: possible starts, or steps above the limit."""

    def schedule(self, step: int) -> None:
        self.latest = step
        self.share.fill_(1 / (step - self.opened + 1))

    def validated_at(self, step: int) -> bool:
        if self.valley.ended:
            return False
        return step % validation_interval(self.run) == 0 or step == self.run.steps - 1

    def evaluated_at(self, step: int) -> bool:
        return step == self.run.steps - 1

    def observe(self, step: int, loss: float) -> None:
        searching = self.valley.start is None
        self.pending.append(Segment(self.mean.clone(), self.opened, step))
        self.opened = step + 1
        self.valley.observe(loss)
        if self.valley.ended:
            self.pending.clear()
        elif self.valley.inside is None:
            self._settle(len(self.pending) - (CONVERGED - 1))
        else:
            if searching:
                self.settled = None  # the steps before the start
            above = len(self.valley.losses) - 1 - self.valley.inside
            self._settle(len(self.pending) - above)
            self._join_pending()

    def _settle(self, count: int) -> None:
        """The first pending segments are no longer in question."""
        for _ in range(count):
            segment = self.pending.pop(0)
            if self.settled is None:
                self.settled = segment
            else:
                self.settled.extend(segment)

    def _join_pending(self) -> None:
        """After the start pending segments count together or not at all."""
        while len(self.pending) > 1:
            self.pending[0].extend(self.pending.pop(1))

    def _as_if_over(self) -> Segment:
        """The average if the training ended now: up to the valley's end, or to the latest step without one."""
        parts = self._segments()
        if self.latest >= self.opened and not self.valley.ended:
            parts.append(Segment(self.mean, self.opened, self.latest))
        whole = replace(parts[0], mean=parts[0].mean.clone())
        for part in parts[1:]:
            whole.extend(part)
        return whole

    def steps(self, step: int, selected: bool) -> AveragedSteps:
        whole = self._as_if_over()
        return AveragedSteps(self.run.average, whole.first, whole.last, step, selected)

    def value(self) -> Tensor:
        return self._as_if_over().mean

    def tensors(self) -> Iterator[Tensor]:
        yield from super().tensors()
        yield from (segment.mean for segment in self._segments())

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "opened": self.opened,
            "latest": self.latest,
            "valley": asdict(self.valley),
            "settled": self.settled is not None,
            "segments": [vars(segment) for segment in self._segments()],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.opened, self.latest = (operator.index(state[name]) for name in ("opened", "latest"))
        self.valley = LossValley(**state["valley"])
        segments = [
            Segment(torch.empty_like(self.mean).copy_(one["mean"]), one["first"], one["last"])
            for one in state["segments"]
        ]
        self.settled = segments.pop(0) if state["settled"] else None
        self.pending = segments

    def _segments(self) -> list[Segment]:
        return [*([] if self.settled is None else [self.settled]), *self.pending]
