"""How the steps of a training run: `Execution` decides it, once per training.

    mode      device        one step is
    eager     CPU           launched operation by operation
    captured  one GPU       one CUDA graph (`capture`)
    compiled  one GPU       one CUDA graph of a compiled network (`compilation`), in trainings that are long enough
    ranks     one per rank  eager, with every pass through the network divided among ranks (`data_parallel`)

Results agree up to rounding.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from domainwise.algorithms.base import Algorithm
from domainwise.engine.execution.capture import CapturedStep
from domainwise.engine.execution.data_parallel import check_data_parallel, data_parallel
from domainwise.engine.execution.ranks import Ranks

log = logging.getLogger(__name__)

Mode = Literal["eager", "captured", "compiled", "ranks"]

WORTH_COMPILING = 1000
"""From this many steps on, compiling saves more time than it takes."""


@dataclass(frozen=True)
class Execution:
    """How one training's steps and evaluations run; `ranks` belongs to the mode of that name."""

    mode: Mode
    ranks: Ranks | None = None

    @classmethod
    def choose(cls, ranks: Ranks, steps: int) -> "Execution":
        """The fastest mode for a training of so many steps on the device of these ranks."""
        if ranks.size > 1:
            return cls("ranks", ranks)
        if ranks.device.type == "cuda":
            return cls("compiled" if steps >= WORTH_COMPILING else "captured")
        return cls("eager")

    @property
    def captures(self) -> bool:
        """Whether steps and evaluations are recorded as CUDA graphs."""
        return self.mode in ("captured", "compiled")

    def captured_step(self, algorithm: Algorithm, **options: Any) -> CapturedStep | None:
        """Records and replays the algorithm's steps (see CapturedStep for the options); None if they run eagerly."""
        return CapturedStep(algorithm, compile=self.mode == "compiled", **options) if self.captures else None

    def check(self, algorithm: Algorithm, network: str) -> None:
        """Raises UserError if the algorithm's network, of this name, cannot be trained in this mode."""
        if self.ranks is not None:
            check_data_parallel(algorithm, network)

    def divided(self, algorithm: Algorithm) -> AbstractContextManager[None]:
        """Within it, passes through the algorithm's network are divided among ranks, if there are several."""
        if self.ranks is None:
            return nullcontext()
        if self.ranks.device.type == "cuda":
            log.warning("%d GPUs share every step, so steps are not captured", self.ranks.size)
        return data_parallel(algorithm, self.ranks)
