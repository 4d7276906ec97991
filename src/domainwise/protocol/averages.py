"""Averages of a training's weights: their names, what each step counts, and how averaged weights are described.

With w_t the weights after step t (from 0) and m_t the averaged ones, m_t = m_(t-1) + a_t (w_t - m_(t-1)), where

    sma    a_t = 1 / max(1, t - 100 + 1)     the mean of all weights from step 100 on; before it, the current weights.
                                             Arpit et al. 2022, https://arxiv.org/abs/2110.10832
    ema    a_t = 1 - min(0.999, (1 + t) / (10 + t))    exponential; its memory grows with t, until it is 1000 steps.
                                             Polyak & Juditsky 1992; the usual warm-up
    swad   the mean of all weights between a start and an end that the validation loss shows (protocol/loss_valley.py).
                                             Cha et al. 2021, https://arxiv.org/abs/2102.08604

Steps of an algorithm's first phase (`Algorithm.first_phase`) do not count: t is the number of the step after it.
Averaging changes nothing in a training: weights, batches and random streams are those of the same run without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from domainwise.core.errors import UserError

AVERAGES = ("ema", "sma", "swad")
NONE = "none"
"""In place of a name, for no average."""
SMA_START = 100
EMA_DECAY = 0.999
SWAD_SHARE = 6
"""SWAD validates so many times between two evaluations."""


def check_average(average: str, held_out: float) -> None:
    """Raises UserError for an unknown average, or one that the held-out samples do not allow."""
    if average and average not in AVERAGES:
        raise UserError(
            f"unknown average {average[:40]!r}: choose {NONE}, {', '.join(AVERAGES[:-1])} or {AVERAGES[-1]}",
            argument="average",
        )
    if average == "swad" and not held_out:
        raise UserError(
            "swad finds its start and end by the loss on held-out samples, but held_out is 0: hold some out, or "
            "average by sma or ema",
            argument="average",
        )


def share_of_step(average: str, step: int) -> float:
    """a_t: how much the weights after this step count in the averaged ones; not for swad, whose steps count alike."""
    if average == "ema":
        return 1 - min(EMA_DECAY, (1 + step) / (10 + step))
    return 1 / max(1, step - SMA_START + 1)


def first_step(average: str, step: int) -> int:
    """The first step whose weights count in the average after this step; not for swad."""
    return 0 if average == "ema" else min(SMA_START, step)


@dataclass(frozen=True)
class AveragedSteps:
    """Which steps averaged weights are the average of, and after which step they were evaluated."""

    average: str
    first: int
    last: int
    step: int
    selected: bool
    """Whether training-domain validation selected that step."""

    def metadata(self) -> dict[str, str]:
        """As entries of a file of weights."""
        numbers = {"first": self.first, "last": self.last, "step": self.step, "selected": int(self.selected)}
        return {"average": self.average} | {name: str(number) for name, number in numbers.items()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "AveragedSteps | None":
        """None if the entries are not complete."""
        numbers = [metadata.get(name, "") for name in ("first", "last", "step", "selected")]
        if metadata.get("average") not in AVERAGES or not all(str(number).isdecimal() for number in numbers):
            return None
        first, last, step, selected = map(int, numbers)
        return cls(metadata["average"], first, last, step, bool(selected))
