"""SWAD's decision: between which validations to average, from their losses alone.

Algorithm 1 of Cha et al. 2021 (https://arxiv.org/abs/2102.08604). With L_i the loss of validation i on held-out samples
of the training domains, N_s = 3, N_e = 6 and r = 1.3,

    start    the first i with L_i = min(L_i, ..., L_(i + N_s - 1)): no lower loss among the next two
    limit    r times the mean of these N_s losses
    end      the last validation before N_e in a row whose losses are all above the limit; without such, the last of all

A training whose loss falls to its end has no start: then every step is averaged, as in the paper (the released code
takes the last weights).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

CONVERGED = 3
"""N_s."""
TOLERATED = 6
"""N_e."""
RATIO = 0.3
"""r - 1."""


@dataclass
class LossValley:
    """Observes one loss after the other. A loss that is not finite counts as infinite."""

    start: int | None = None
    """The number of the validation, from 0."""
    limit: float = math.inf
    inside: int | None = None
    """The last validation since the start whose loss is not above the limit."""
    ended: bool = False
    """Whether `inside` is the end: later losses do not count."""
    losses: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, losses: Iterable[float]) -> "LossValley":
        """After all these losses."""
        valley = cls()
        for loss in losses:
            valley.observe(loss)
        return valley

    def observe(self, loss: float) -> None:
        if self.ended:
            return
        self.losses.append(loss if math.isfinite(loss) else math.inf)
        number, latest = len(self.losses) - 1, self.losses[-CONVERGED:]
        if self.start is None:
            if len(latest) == CONVERGED and latest[0] == min(latest) < math.inf:
                self.start = number - CONVERGED + 1
                self.limit = (1 + RATIO) * sum(latest) / CONVERGED
                self.inside = self.start + max(i for i, value in enumerate(latest) if value <= self.limit)
        elif self.losses[-1] <= self.limit:
            self.inside = number
        elif self.inside is not None and number - self.inside == TOLERATED:
            self.ended = True
