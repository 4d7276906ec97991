"""Records: one flat row per run, step, domain and split, and how a run ended."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from domainwise.core.parsing import Count, Fraction, Longest, Positive, Seconds, check

State = Literal["done", "diverged", "failed"]
LONGEST_REASON = 10_000


class SplitScores(NamedTuple):
    """The metrics of one evaluation on one split of a domain; None where one is not known or not defined."""

    accuracy: float
    loss: float
    """The mean cross-entropy, which is the negative log-likelihood per sample."""
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    auroc: float | None = None
    """Not defined where all samples are of one class."""
    calibration_error: float | None = None
    worst_class: float | None = None
    worst_group: float | None = None
    """Not defined where no group has enough samples."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "SplitScores":
        """As they are recorded: accuracy and loss exactly, the others to six decimals."""
        accuracy, loss, *others = values
        return cls(accuracy, loss, *(round(value, 6) if math.isfinite(value) else None for value in others))


@dataclass(frozen=True)
class Record:
    """How well a run did, after one step, on one split of one domain."""

    run: str
    step: Count
    domain: str
    split: str
    accuracy: Fraction
    loss: float
    seconds: Seconds
    training_loss: float | None = None
    """The mean loss of the training steps since the evaluation before, the same in all records of the last weights."""
    average: str | None = None
    """Which averaged weights were evaluated; None: those of the step itself."""
    balanced_accuracy: Fraction | None = None
    """Mean recall over the classes that occur. This and the fields below are None in records of earlier versions."""
    macro_f1: Fraction | None = None
    auroc: Fraction | None = None
    """One class against the rest, mean over the classes; None also where all samples are of one class."""
    calibration_error: Fraction | None = None
    """Expected calibration error, 15 bins."""
    worst_class: Fraction | None = None
    worst_group: Fraction | None = None
    """Lowest recall of a class that occurs."""

    @classmethod
    def of(
        cls,
        run: str,
        step: int,
        split: tuple[str, str],
        scores: SplitScores,
        seconds: float,
        training_loss: float | None = None,
        average: str | None = None,
    ) -> "Record":
        """Of the scores on one (domain, split)."""
        return cls(run, step, *split, *scores[:2], seconds, training_loss, average, *scores[2:])

    @property
    def scores(self) -> SplitScores:
        return SplitScores(*(getattr(self, name) for name in SplitScores._fields))


@dataclass(frozen=True)
class PenaltyRecord:
    """The penalties of IRM and of linearised AT and DAT, after one step, on one training domain (run tracked so)."""

    run: str
    step: Count
    domain: str
    irm: float
    at: float
    dat: float
    ldat: float


@dataclass(frozen=True)
class Status:
    """How a run ended, and where and when, if that is known; always the last line of its file."""

    run: str
    step: Count
    status: State
    reason: Annotated[str, Longest(10 * LONGEST_REASON)]
    device: str = field(default="", compare=False)
    software: str = field(default="", compare=False)
    date: str = field(default="", compare=False)
    threads: Positive | None = field(default=None, compare=False)

    @property
    def has_provenance(self) -> bool:
        """Whether the device and the software that made the run are known."""
        return bool(self.device and self.software)


@dataclass(frozen=True)
class _AuditSummary:
    """What audit.json may hold."""

    sentence: Annotated[str, Longest(LONGEST_REASON)]
    accuracy: dict[str, Fraction] = field(default_factory=dict)
    commonest: dict[str, Any] = field(default_factory=dict)
    probe: dict[str, float] | None = None
    shortcut: dict[str, Any] | None = None
    weights: str = ""


def check_audit(values: Any, where: object, advice: str) -> dict[str, Any]:
    """The summary of an audit, as `domainwise.analysis.audit` makes it."""
    check(values, _AuditSummary, where, advice)
    return dict(values)


def row_values(row: Record | PenaltyRecord | Status) -> dict[str, Any]:
    """All fields but those that are None, which earlier versions do not know."""
    return {name: value for name, value in asdict(row).items() if value is not None}
