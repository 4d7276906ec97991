"""Model selection: which draw and which step to report, from records alone. A number without its rule is not a result.

A rule looks at all draws of one algorithm, dataset, domains and trial, picks one of their evaluations, and reports the
unseen domain's `in` accuracy there, or another metric, by which it then picks, too. Ties go to the highest
draw, as in DomainBed, then to the earliest step.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from domainwise.protocol.metrics import ACCURACY, FIELDS, WORST_CLASS, Metric
from domainwise.protocol.records import Record
from domainwise.protocol.runs import Run

Floats = npt.NDArray[np.float64]
ByPart = Mapping[tuple[str, str], Floats]
"""{(domain, split): one value per evaluation}."""


@dataclass(frozen=True, order=True)
class Method:
    """A row of a table: an algorithm, and the name of the search where one algorithm is searched in several spaces.

    With an `average` it is the method that uses the averaged weights of the same trainings. `combined` says how a soup
    or an ensemble of such trainings is made.
    """

    algorithm: str
    variant: str = ""
    average: str = ""
    combined: str = ""

    @classmethod
    def of(cls, run: Run, average: str = "") -> "Method":
        """Of a run's last weights, or of its averaged ones."""
        return cls(run.algorithm, run.variant, average, run.combined)

    def __str__(self) -> str:
        name = f"{self.algorithm} ({self.variant})" if self.variant else self.algorithm
        name = f"{name} + {self.average.upper()}" if self.average else name
        return f"{name} {self.combined}" if self.combined else name


@dataclass(frozen=True, order=True)
class Column:
    """An unseen domain, and in the single-source setting the training domain: a column of a table."""

    unseen: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.source} → {self.unseen}" if self.source else self.unseen


class Search(NamedTuple):
    """The draws that a rule chooses from share these."""

    method: Method
    column: Column
    trial: int


@dataclass(frozen=True)
class Curve:
    """The accuracies of one run over its evaluations, and those of its companions.

    Companions are the runs of the same draw and trial that leave out one further domain each: leave-one-domain-out
    validation needs them.
    """

    run: Run
    steps: tuple[int, ...]
    accuracy: ByPart
    companions: Mapping[str, "Curve"] = field(default_factory=dict)
    training_loss: Floats | None = None
    """The mean loss of the training steps since the evaluation before; None in records of earlier versions."""
    seconds: float | None = None
    """How long the run took until its last evaluation, where that is known."""
    average: str = ""
    """Which averaged weights were evaluated; empty: those of the steps themselves."""
    others: Mapping[str, ByPart] = field(default_factory=dict)
    """The other fields of the records that are metrics, where all evaluations have them."""

    def values(self, metric: Metric) -> ByPart:
        """Of a metric; empty where it was not recorded."""
        return self.accuracy if metric == ACCURACY else self.others.get(metric.field, {})

    @cached_property
    def method(self) -> Method:
        return Method.of(self.run, self.average)

    @classmethod
    def of(cls, run: Run, records: Iterable[Record], average: str = "") -> "Curve":
        """From the records of the last weights, or of the averaged ones."""
        rows: dict[tuple[str, str], dict[int, Record]] = {}
        losses: dict[int, float | None] = {}
        seconds: float | None = None
        for record in records:
            if (record.average or "") != average:
                continue
            seconds = record.seconds
            rows.setdefault((record.domain, record.split), {})[record.step] = record
            losses[record.step] = record.training_loss
        steps = tuple(sorted(set.intersection(*(set(v) for v in rows.values())))) if rows else ()
        known = {}
        for name in FIELDS:
            columns = {part: [getattr(of_step[step], name) for step in steps] for part, of_step in rows.items()}
            if not any(None in column for column in columns.values()):
                known[name] = {part: np.array(column) for part, column in columns.items()}
        accuracy = known.pop("accuracy")
        training_losses = known_losses([losses[step] for step in steps])
        return cls(run, steps, accuracy, {}, training_losses, seconds, average, known)

    def until(self, step: int) -> "Curve":
        """The same run as if it had ended after this step."""
        count = sum(evaluated <= step for evaluated in self.steps)
        accuracy = {part: values[:count] for part, values in self.accuracy.items()}
        others = {name: {part: v[:count] for part, v in by_part.items()} for name, by_part in self.others.items()}
        losses = None if self.training_loss is None else self.training_loss[:count]
        values = {"accuracy": accuracy, "others": others, "training_loss": losses}
        return replace(self, steps=self.steps[:count], seconds=None, **values)  # type: ignore[arg-type]

    def mean(self, domains: Sequence[str], split: str, metric: Metric = ACCURACY) -> Floats | None:
        """The mean of a metric over domains, per step; None where one was not evaluated."""
        known = self._of_domains(domains, split, metric)
        return np.mean(known, axis=0) if known else None

    def lowest(self, domains: Sequence[str], split: str, metric: Metric = ACCURACY) -> Floats | None:
        """The goodness of a metric on the domain where it is worst, per step; None where one was not evaluated."""
        known = self._of_domains(domains, split, metric)
        return metric.goodness(np.array(known)).min(0) if known else None

    def _of_domains(self, domains: Sequence[str], split: str, metric: Metric) -> list[Floats]:
        """Of every domain; of none where one was not evaluated."""
        values = self.values(metric)
        return [values[domain, split] for domain in domains] if all((d, split) in values for d in domains) else []


def known_losses(losses: Sequence[float | None]) -> Floats | None:
    """The training losses of a curve's evaluations; None if one was not recorded."""
    return None if not losses or None in losses else np.array(losses, dtype=np.float64)


@dataclass(frozen=True)
class Selection:
    """The point a rule picked, and the unseen domain's accuracy there."""

    run: Run
    step: int
    accuracy: float
    others: Mapping[str, float] = field(default_factory=dict, compare=False)
    """The other metrics that were recorded, by their fields."""

    def value(self, metric: Metric) -> float | None:
        """None where it was not recorded."""
        return self.accuracy if metric == ACCURACY else self.others.get(metric.field)


Score = Callable[[Curve, str, Metric], Floats | None]
"""The rule's score of each evaluation of a curve for an unseen domain, higher for better values of the metric; None if
the curve lacks what the rule needs."""


def training_domain(curve: Curve, unseen: str, metric: Metric = ACCURACY) -> Floats | None:  # noqa: ARG001
    """Over all draws and evaluations, the highest mean `out` accuracy of the training domains."""
    return _goodness(curve.mean(curve.run.train_domains, "out", metric), metric)


def _goodness(values: Floats | None, metric: Metric) -> Floats | None:
    return None if values is None else metric.goodness(values)


def training_domain_score(run: Run, accuracy: Mapping[tuple[str, str], float]) -> float | None:
    """The same for one evaluation; None if a training domain has no `out` split."""
    values = [accuracy[domain, "out"] for domain in run.train_domains if (domain, "out") in accuracy]
    if len(values) < len(run.train_domains):
        return None
    return float(np.mean([[value, value] for value in values], axis=0)[0])  # two columns: added as those of a curve


def oracle(curve: Curve, unseen: str, metric: Metric = ACCURACY) -> Floats | None:
    """At the last evaluation only, the highest `out` accuracy of the unseen domain: test-domain validation."""
    values = curve.values(metric)
    out = _goodness(values.get((unseen, "out"), values.get((unseen, "in"))), metric)
    return None if out is None else np.where(np.arange(len(out)) == len(out) - 1, out, -np.inf)


def leave_one_domain_out(curve: Curve, unseen: str, metric: Metric = ACCURACY) -> Floats | None:
    """The highest mean, over every further domain, of its `in` accuracy when it is left out too, at the same step.

    Like DomainBed, it passes over steps recorded more than once.
    """
    further = curve.run.train_domains
    if len(curve.run.test_domains) > 1 or not all(domain in curve.companions for domain in further):
        return None
    scores = []
    seen = Counter(curve.steps)
    for domain in further:
        companion = curve.companions[domain]
        at = {step: i for i, step in enumerate(companion.steps)}
        left_out = _goodness(companion.values(metric).get((domain, "in")), metric)
        if left_out is None or unseen not in companion.run.test_domains:
            return None
        once = [step in at and seen[step] == 1 for step in curve.steps]
        scores.append([left_out[at[step]] if ok else -np.inf for step, ok in zip(curve.steps, once, strict=True)])
    return np.mean(scores, axis=0)


def validation_domain(curve: Curve, unseen: str, metric: Metric = ACCURACY) -> Floats | None:  # noqa: ARG001
    """Over all draws and evaluations, the highest accuracy on the validation domains, all of whose images are `in`."""
    return _goodness(curve.mean(curve.run.validation_domains, "in", metric), metric)


def worst_domain(curve: Curve, unseen: str, metric: Metric = ACCURACY) -> Floats | None:  # noqa: ARG001
    """Over all draws and evaluations, the highest `out` accuracy of the training domain where it is lowest.

    Where a run has validation domains, they take the place of the training domains. With one domain there is no worst.
    """
    domains, split = _validated(curve.run)
    return curve.lowest(domains, split, metric) if len(domains) > 1 else None


def worst_subgroup(curve: Curve, unseen: str, metric: Metric = ACCURACY) -> Floats | None:  # noqa: ARG001
    """Over all draws and evaluations, the highest `out` recall of the class of a training domain where it is lowest.

    Whatever the metric. Where a run has validation domains, they take the place of the training domains.
    """
    return curve.lowest(*_validated(curve.run), WORST_CLASS)


def _validated(run: Run) -> tuple[tuple[str, ...], str]:
    """The domains and their split that a rule may look at."""
    return (run.validation_domains, "in") if run.validation_domains else (run.train_domains, "out")


RULES: dict[str, Score] = {
    "training-domain": training_domain,
    "leave-one-domain-out": leave_one_domain_out,
    "oracle": oracle,
    "validation-domain": validation_domain,
    "worst-domain": worst_domain,
    "worst-subgroup": worst_subgroup,
}


def select(curves: Sequence[Curve], unseen: str, rule: str, metric: Metric = ACCURACY) -> Selection | None:
    """The rule's choice among the draws of one search; None if none of them has what the rule needs."""
    scored = _best_evaluations(curves, unseen, rule, metric)
    return max(scored, key=lambda one: one[0])[1] if scored else None


def rank(curves: Sequence[Curve], unseen: str, rule: str, metric: Metric = ACCURACY) -> list[Selection]:
    """The rule's choice, its choice if that draw had not been made, and so on."""
    scored = _best_evaluations(curves, unseen, rule, metric)
    return [choice for _, choice in sorted(scored, key=lambda one: -one[0])]


def _best_evaluations(curves: Sequence[Curve], unseen: str, rule: str, metric: Metric) -> list[tuple[float, Selection]]:
    """(score, choice within the draw) of every draw that has what the rule needs; of equal scores the first wins."""
    result = []
    by = metric if metric.selects else ACCURACY
    for curve in sorted(curves, key=lambda curve: curve.run.draw, reverse=True):
        scores = RULES[rule](curve, unseen, by) if curve.steps else None
        if scores is None or (unseen, "in") not in curve.values(metric):
            continue
        at = int(scores.argmax())
        if np.isfinite(scores[at]):
            others = {name: float(values[unseen, "in"][at]) for name, values in curve.others.items()}
            choice = Selection(curve.run, curve.steps[at], float(curve.accuracy[unseen, "in"][at]), others)
            result.append((float(scores[at]), choice))
    return result


def searches(curves: Sequence[Curve]) -> dict[Search, list[Curve]]:
    """The draws of every search; a run with several unseen domains belongs to one search per domain."""
    grouped: dict[Search, list[Curve]] = {}
    for curve in curves:
        for column in columns_of(curve.run):
            grouped.setdefault(Search(curve.method, column, curve.run.trial), []).append(curve)
    return grouped


def columns_of(run: Run) -> list[Column]:
    """The columns of a table that a run belongs to: one per unseen domain."""
    source = run.train_domains[0] if run.setting == "single" else ""
    return [Column(unseen, source) for unseen in run.test_domains]
