"""Which weights of a run to use: those of the step that validation selects, or those of the last step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from domainwise.core.errors import unknown
from domainwise.protocol.records import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

SAVES = ("best", "last")
"""best: of the step that training-domain validation selects, where samples were held out; last: of the last step."""
RULE = "training-domain"
"""The selection rule of the best step; tables show the same step by default."""


def check_save(save: str) -> None:
    if save not in SAVES:
        raise unknown("step to save", save, SAVES)


def describe_step(step: int, selected: bool) -> str:
    """In words, for everything that is shown of a model."""
    return f"weights of step {step}, selected by {RULE} validation" if selected else f"weights of the last step, {step}"


@dataclass(frozen=True)
class SavedWeights:
    """The weights of one step of a run, and whether validation selected that step."""

    step: int
    tensors: "dict[str, Tensor]"
    selected: bool

    def __str__(self) -> str:
        return describe_step(self.step, self.selected)


def saved_weights(folder: RunFolder, save: str = "best") -> SavedWeights:
    """Of a finished run; "best" are those of the last step where the run has no others (see SAVES)."""
    check_save(save)
    best = folder.load_best() if save == "best" else None
    if best is not None:
        return SavedWeights(*best, selected=True)
    last = folder.last_step()
    return SavedWeights(folder.run.steps - 1 if last is None else last, folder.load_model(), selected=False)
