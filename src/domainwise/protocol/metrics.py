"""What a table shows and a selection rule goes by: accuracy, or another field of the records."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from domainwise.core.errors import unknown

Values = TypeVar("Values")


@dataclass(frozen=True)
class Metric:
    """A number that every evaluation of a domain records."""

    name: str
    field: str
    """Of a Record."""
    title: str
    higher_is_better: bool = True
    percent: bool = True
    """Whether it is a fraction, shown in per cent."""
    selects: bool = True
    """Whether rules select by it. Calibration alone does not make a model useful: an untrained network that gives every
    class the same probability is perfectly calibrated. Where False, rules select by accuracy."""
    temperature_changes_it: bool = False
    """Whether calibration changes it: it depends on how sure a model is, not only on what it predicts."""
    needs: str = ""
    """What data must have for it, beyond classes."""

    def shown(self, value: float) -> float:
        """As tables show it: fractions in per cent."""
        return 100 * value if self.percent else value

    def format(self, value: float, sign: str = "") -> str:
        """A value as tables show it, rounded."""
        return f"{value:{sign}.1f}" if self.percent else f"{value:{sign}.3f}"

    def goodness(self, values: Values) -> Values:
        """The values, or their negatives where lower is better: higher is always better."""
        return values if self.higher_is_better else -values  # type: ignore[operator]

    def best(self, values: Iterable[float]) -> float | None:
        """None where there are no values."""
        return max(values, key=self.goodness, default=None)

    def worst(self, values: Iterable[float]) -> float:
        return min(values, key=self.goodness)

    @property
    def needs_note(self) -> str:
        """After a message that it is not known; empty where nothing more is needed."""
        return f" (it needs {self.needs})" if self.needs else ""

    @property
    def heading(self) -> str:
        """The title at the beginning of a line."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def unit(self) -> str:
        """After a title; empty where there is none."""
        return ", per cent" if self.percent else ""

    @property
    def selecting(self) -> str:
        """After the name of a selection rule: by what it selects where this is shown; empty for accuracy."""
        if self.name == "accuracy":
            return ""
        return f" of {self.title}" if self.selects else " of accuracy"

    def chance(self, classes: int) -> float | None:
        """As tables show it: of guessing any class as often as any other; None where that depends on the data."""
        known = {"accuracy": 100 / classes, "balanced-accuracy": 100 / classes, "auroc": 50.0, "nll": math.log(classes)}
        return known.get(self.name)


SMALLEST_GROUP = 10
"""Samples of a group (a patient, a lot) whose accuracy counts: that of fewer is noise, and the lowest is 0."""
ACCURACY = Metric("accuracy", "accuracy", "accuracy")
WORST_CLASS = Metric("worst-class", "worst_class", "lowest recall of a class")
WORST_GROUP = Metric(
    "worst-group",
    "worst_group",
    f"lowest accuracy of a group of at least {SMALLEST_GROUP}",
    needs=f"groups, and in every evaluated split one of at least {SMALLEST_GROUP} samples",
)
METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        ACCURACY,
        Metric("balanced-accuracy", "balanced_accuracy", "balanced accuracy"),
        Metric("macro-f1", "macro_f1", "macro F1"),
        Metric("auroc", "auroc", "AUROC", temperature_changes_it=True),
        Metric(
            "nll",
            "loss",
            "negative log-likelihood",
            higher_is_better=False,
            percent=False,
            temperature_changes_it=True,
        ),
        Metric(
            "calibration-error",
            "calibration_error",
            "calibration error",
            higher_is_better=False,
            selects=False,
            temperature_changes_it=True,
        ),
        WORST_CLASS,
        WORST_GROUP,
    )
}
FIELDS = tuple(metric.field for metric in METRICS.values())
"""Of records."""
MEASURED = tuple(field for field in FIELDS if field not in ("accuracy", "loss"))
"""Those that records of earlier versions lack."""


def find_metric(name: str) -> Metric:
    """The metric of this name; an unknown one is a UserError."""
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    return METRICS[name]
