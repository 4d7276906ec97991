"""What a calibrated model answers: a class, or none below a threshold of confidence, and a set of classes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.models.card import ADVICE
from domainwise.protocol.calibration import (
    SOURCES,
    Outcomes,
    coverage_threshold,
    risk_threshold,
    samples_needed,
    set_threshold,
)

if TYPE_CHECKING:
    from domainwise.models.model import Model

log = logging.getLogger(__name__)

UNKNOWN = "I don't know"
RULES: dict[str, Callable[[Mapping[str, Outcomes], float], float]] = {
    "coverage": coverage_threshold,
    "risk": risk_threshold,
}
PARTS = ("confidence", "correct", "truth")


class HasOutcomes(Protocol):
    """A model with the predictions of its calibration domains."""

    outcomes: dict[str, Outcomes]


@dataclass(frozen=True)
class Decision:
    """The most likely class of an input, its probability, and the set of classes if sets are asked for."""

    label: str | None
    """None: the model abstains."""
    confidence: float
    classes: tuple[str, ...] | None


@dataclass(frozen=True)
class DecisionRule:
    """Decides by the probabilities of one input.

    `lowest` is the confidence below which the model abstains, `least` the probability of the classes of a set (None: no
    sets). `warning` says why the thresholds may be too low, if they may.
    """

    classes: tuple[str, ...]
    lowest: float = 0.0
    least: float | None = None
    warning: str = ""

    @classmethod
    def of(cls, model: "Model", abstain: str = "", sets: str | float = "") -> "DecisionRule":
        """With the thresholds of a calibrated model, e.g. by "coverage=0.9" and sets at level 0.9."""
        lowest = abstain_threshold(model, abstain) if abstain else 0.0
        least = sets_threshold(model, sets) if sets else None
        made = model.card.calibration
        held_out = (abstain or sets) and made is not None and made.source == "held-out"
        return cls(model.classes, lowest, least, f"thresholds were chosen {SOURCES['held-out']}" if held_out else "")

    def decide(self, probabilities: Sequence[float]) -> Decision:
        confidence = max(probabilities)
        label = self.classes[probabilities.index(confidence)] if confidence >= self.lowest else None
        chosen = None if self.least is None else class_set(self.classes, probabilities, self.least)
        return Decision(label, confidence, chosen)


def abstain_threshold(model: HasOutcomes, rule: str) -> float:
    """The confidence below which a model abstains, by "coverage=0.9" or "risk=0.05"."""
    name, _, number = rule.partition("=")
    value = _number(number)
    if name not in RULES or value is None:
        raise UserError(
            f"abstain by {rule[:40]!r}: give coverage=0.9 or risk=0.05, a number above 0 and below 1",
            argument="abstain",
        )
    return RULES[name](_calibrated(model, "abstain"), value)


def sets_threshold(model: HasOutcomes, level: float | str) -> float:
    """The probability from which on a class belongs to a set, so that sets hold the true class at this level."""
    value = _number(level)
    if value is None:
        raise UserError(f"sets at level {str(level)[:40]!r}: give a number above 0 and below 1", argument="sets")
    outcomes, needed = _calibrated(model, "sets"), samples_needed(value)
    domain = min(outcomes, key=lambda name: len(outcomes[name].truth))
    if (count := len(outcomes[domain].truth)) < needed:
        log.warning(
            "every set holds every class: sets at level %g need at least %s of each calibration domain, %s has %d",
            value,
            counted(needed, "sample"),
            domain,
            count,
        )
    return set_threshold(outcomes, value)


def class_set(classes: Sequence[str], probabilities: Sequence[float], threshold: float) -> tuple[str, ...]:
    """The classes of at least this probability, the most likely first, which is always among them."""
    order = sorted(range(len(classes)), key=lambda i: -probabilities[i])
    return tuple(classes[i] for i in order if i == order[0] or probabilities[i] >= threshold)


def _calibrated(model: HasOutcomes, argument: str) -> Mapping[str, Outcomes]:
    if not model.outcomes:
        raise UserError("this model is not calibrated: calibrate does that, or compare", argument=argument)
    return model.outcomes


def _number(text: float | str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1 else None


def outcome_tensors(outcomes: Mapping[str, Outcomes]) -> dict[str, Tensor]:
    """By the number of the domain, since a domain may have any name."""
    return {
        f"{number}.{part}": torch.from_numpy(
            np.array(getattr(one, part), np.uint8 if part == "correct" else np.float32)
        )
        for number, one in enumerate(outcomes.values())
        for part in PARTS
    }


def read_outcomes(tensors: Mapping[str, Tensor], domains: Mapping[str, int], file: Path) -> dict[str, Outcomes]:
    """The outcomes of each domain; tensors of other names, sizes or values are a UserError."""
    outcomes = {}
    for number, (domain, count) in enumerate(domains.items()):
        parts = [tensors.get(f"{number}.{part}") for part in PARTS]
        if any(part is None or part.shape != (count,) for part in parts):
            raise UserError(f"{file} does not hold {count} samples of {domain}: {ADVICE}")
        confidence, correct, truth = (part.numpy() for part in parts if part is not None)
        if not all(((part >= 0) & (part <= 1)).all() for part in (confidence, correct, truth)):
            raise UserError(f"{file}: probabilities of {domain} are not between 0 and 1: {ADVICE}")
        outcomes[domain] = Outcomes(confidence.astype(np.float64), correct.astype(bool), truth.astype(np.float64))
    return outcomes
