"""Which weights of a run to use: those of the step that validation selects, of the last step, or averaged ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from domainwise.core.errors import UserError, unknown
from domainwise.protocol.averages import AveragedSteps
from domainwise.protocol.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

SAVES = ("auto", "best", "last", "averaged")
"""auto: averaged where the run has an average, else best
best: of the step that training-domain validation selects, where samples were held out
last: of the last step
averaged: the averaged weights, of ema and sma at the step that training-domain validation of these weights selects."""
RULE = "training-domain"
"""The selection rule of the best step; tables show the same step by default."""


def check_save(save: str, average: str) -> None:
    """Raises UserError unless a run with this average, or none, has the weights that `save` names."""
    if save not in SAVES:
        raise unknown("step to save", save, SAVES)
    if save == "averaged" and not average:
        raise UserError("the run has no averaged weights: give it an average (ema, sma or swad)", argument="average")


def describe_step(step: int, selected: bool) -> str:
    """In words, for everything that is shown of a model."""
    return f"weights of step {step}, selected by {RULE} validation" if selected else f"weights of the last step, {step}"


def describe_average(steps: AveragedSteps) -> str:
    """In words, for everything that is shown of a model."""
    kind = "exponentially averaged" if steps.average == "ema" else "averaged"
    averaged = f"weights {kind} over steps {steps.first} to {steps.last} ({steps.average.upper()})"
    if steps.average == "swad":
        return f"{averaged}, found by {RULE} validation"
    if steps.average == "sma" and steps.first == steps.last:
        averaged = f"weights of step {steps.last} alone (SMA had no other step to average yet)"
        return f"{averaged}, selected by {RULE} validation" if steps.selected else f"{averaged}, the last step"
    return f"{averaged}, selected by {RULE} validation" if steps.selected else f"{averaged}, up to the last step"


@dataclass(frozen=True)
class SavedWeights:
    """Weights of a run, the step after which they were evaluated, and whether validation selected that step."""

    step: int
    tensors: "dict[str, Tensor]"
    selected: bool
    averaged: AveragedSteps | None = None
    """What they are the average of; None: they are those of the step itself."""

    @property
    def average(self) -> str:
        """The name of the average; empty for the weights of a step."""
        return "" if self.averaged is None else self.averaged.average

    @property
    def kind(self) -> str:
        """In two words, where many are listed."""
        return f"{self.average.upper()} average" if self.average else "selected step" if self.selected else "last step"

    def __str__(self) -> str:
        return describe_step(self.step, self.selected) if self.averaged is None else describe_average(self.averaged)


def saved_weights(folder: RunFolder, save: str = "auto") -> SavedWeights:
    """Of a finished run; "best" are those of the last step where the run has no others (see SAVES)."""
    check_save(save, folder.run.average)
    if save == "averaged" or (save == "auto" and folder.run.average):
        steps, tensors = folder.load_averaged()
        return SavedWeights(steps.step, tensors, steps.selected, steps)
    best = folder.load_best() if save != "last" else None
    if best is not None:
        return SavedWeights(*best, selected=True)
    last = folder.last_step()
    return SavedWeights(folder.run.steps - 1 if last is None else last, folder.load_model(), selected=False)
