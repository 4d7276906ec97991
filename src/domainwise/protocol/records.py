"""Records: one flat row per run, step, domain and split, and how a run ended."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from domainwise.core.parsing import Count, Fraction, Longest, Positive, Seconds, check

State = Literal["done", "diverged", "failed"]
LONGEST_REASON = 10_000


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
