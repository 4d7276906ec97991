"""The weights of the best evaluation so far, by training-domain validation."""

import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from domainwise.protocol.records import Record
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import training_domain_score


class BestWeights:
    """A copy on the device, made outside of captured steps; nothing is written to disk before the training ends.

    `copied` copies the weights that were evaluated, by default the algorithm's.
    """

    def __init__(self, run: Run, algorithm: Algorithm, copied: Callable[[], dict[str, Tensor]] | None = None) -> None:
        self.run, self.algorithm = run, algorithm
        self.copied = copied or partial(_copy, algorithm)
        self.step, self.score = -1, float("-inf")
        self.tensors: dict[str, Tensor] = {}

    def consider(self, records: Iterable[Record]) -> None:
        """Copies the present weights if this evaluation is better than all before; ties go to the earliest."""
        if self._improves(records):
            self.tensors = {}  # frees the memory of the copy before
            with torch.no_grad():
                self.tensors = self.copied()

    def _improves(self, records: Iterable[Record]) -> bool:
        rows = list(records)
        score = training_domain_score(self.run, {(row.domain, row.split): row.accuracy for row in rows})
        improved = score is not None and score > self.score
        if score is not None and improved:
            self.step, self.score = rows[0].step, score
        return improved

    @property
    def saved(self) -> tuple[int, dict[str, Tensor]] | None:
        """The step and its weights; None if nothing was held out to validate with."""
        return (self.step, self.tensors) if self.tensors else None

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "score": self.score, "tensors": self.tensors}

    def load_state(self, state: dict[str, Any]) -> None:
        self.step, self.score = operator.index(state["step"]), float(state["score"])
        self.tensors = dict(state["tensors"])
        shapes = [
            {name: value.shape for name, value in one.items()} for one in (self.tensors, self.algorithm.state_dict())
        ]
        if self.tensors and shapes[0] != shapes[1]:
            raise ValueError("its best weights are of another network")


def _copy(algorithm: Algorithm) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in algorithm.state_dict().items()}
