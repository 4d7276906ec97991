"""Model selection: which draw and which step to report, from records alone. A number without its rule is not a result.

A rule looks at all draws of one algorithm, dataset, domains and trial, picks one of their evaluations, and reports the
unseen domain's `in` accuracy there. Ties go to the highest draw, as in DomainBed, then to the earliest step.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from domainwise.protocol.records import Record
from domainwise.protocol.runs import Run

Floats = npt.NDArray[np.float64]


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
    accuracy: Mapping[tuple[str, str], Floats]  # (domain, split) -> one value per step
    companions: Mapping[str, "Curve"] = field(default_factory=dict)
    training_loss: Floats | None = None
    """The mean loss of the training steps since the evaluation before; None in records of earlier versions."""
    seconds: float | None = None
    """How long the run took until its last evaluation, where that is known."""
    average: str = ""
    """Which averaged weights were evaluated; empty: those of the steps themselves."""

    @cached_property
    def method(self) -> Method:
        return Method.of(self.run, self.average)

    @classmethod
    def of(cls, run: Run, records: Iterable[Record], average: str = "") -> "Curve":
        """From the records of the last weights, or of the averaged ones."""
        values: dict[tuple[str, str], dict[int, float]] = {}
        losses: dict[int, float | None] = {}
        seconds: float | None = None
        for record in records:
            if (record.average or "") != average:
                continue
            seconds = record.seconds
            values.setdefault((record.domain, record.split), {})[record.step] = record.accuracy
            losses[record.step] = record.training_loss
        steps = tuple(sorted(set.intersection(*(set(v) for v in values.values())))) if values else ()
        accuracy = {part: np.array([v[step] for step in steps]) for part, v in values.items()}
        return cls(run, steps, accuracy, {}, known_losses([losses[step] for step in steps]), seconds, average)

    def until(self, step: int) -> "Curve":
        """The same run as if it had ended after this step."""
        count = sum(evaluated <= step for evaluated in self.steps)
        accuracy = {part: values[:count] for part, values in self.accuracy.items()}
        losses = None if self.training_loss is None else self.training_loss[:count]
        return replace(self, steps=self.steps[:count], accuracy=accuracy, training_loss=losses, seconds=None)

    def mean(self, domains: Sequence[str], split: str) -> Floats | None:
        """The mean accuracy over domains, per step; None where one was not evaluated."""
        curves = [self.accuracy.get((domain, split)) for domain in domains]
        known = [curve for curve in curves if curve is not None]
        return np.mean(known, axis=0) if known and len(known) == len(curves) else None


def known_losses(losses: Sequence[float | None]) -> Floats | None:
    """The training losses of a curve's evaluations; None if one was not recorded."""
    return None if not losses or None in losses else np.array(losses, dtype=np.float64)


@dataclass(frozen=True)
class Selection:
    """The point a rule picked, and the unseen domain's accuracy there."""

    run: Run
    step: int
    accuracy: float


Score = Callable[[Curve, str], Floats | None]
"""The rule's score of each evaluation of a curve for an unseen domain; None if the curve lacks what the rule needs."""


def training_domain(curve: Curve, unseen: str) -> Floats | None:  # noqa: ARG001 (the rule must not use it)
    """Over all draws and evaluations, the highest mean `out` accuracy of the training domains."""
    return curve.mean(curve.run.train_domains, "out")


def training_domain_score(run: Run, accuracy: Mapping[tuple[str, str], float]) -> float | None:
    """The same for one evaluation; None if a training domain has no `out` split."""
    values = [accuracy[domain, "out"] for domain in run.train_domains if (domain, "out") in accuracy]
    if len(values) < len(run.train_domains):
        return None
    return float(np.mean([[value, value] for value in values], axis=0)[0])  # two columns: added as those of a curve


def oracle(curve: Curve, unseen: str) -> Floats | None:
    """At the last evaluation only, the highest `out` accuracy of the unseen domain: test-domain validation."""
    out = curve.accuracy.get((unseen, "out"), curve.accuracy.get((unseen, "in")))
    return None if out is None else np.where(np.arange(len(out)) == len(out) - 1, out, -np.inf)


def leave_one_domain_out(curve: Curve, unseen: str) -> Floats | None:
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
        left_out = companion.accuracy.get((domain, "in"))
        if left_out is None or unseen not in companion.run.test_domains:
            return None
        once = [step in at and seen[step] == 1 for step in curve.steps]
        scores.append([left_out[at[step]] if ok else -np.inf for step, ok in zip(curve.steps, once, strict=True)])
    return np.mean(scores, axis=0)


def validation_domain(curve: Curve, unseen: str) -> Floats | None:  # noqa: ARG001 (the rule must not use it)
    """Over all draws and evaluations, the highest accuracy on the validation domains, all of whose images are `in`."""
    return curve.mean(curve.run.validation_domains, "in")


RULES: dict[str, Score] = {
    "training-domain": training_domain,
    "leave-one-domain-out": leave_one_domain_out,
    "oracle": oracle,
    "validation-domain": validation_domain,
}


def select(curves: Sequence[Curve], unseen: str, rule: str) -> Selection | None:
    """The rule's choice among the draws of one search; None if none of them has what the rule needs."""
    scored = _best_evaluations(curves, unseen, rule)
    return max(scored, key=lambda one: one[0])[1] if scored else None


def rank(curves: Sequence[Curve], unseen: str, rule: str) -> list[Selection]:
    """The rule's choice, its choice if that draw had not been made, and so on."""
    return [choice for _, choice in sorted(_best_evaluations(curves, unseen, rule), key=lambda one: -one[0])]


def _best_evaluations(curves: Sequence[Curve], unseen: str, rule: str) -> list[tuple[float, Selection]]:
    """(score, choice within the draw) of every draw that has what the rule needs; of equal scores the first wins."""
    result = []
    for curve in sorted(curves, key=lambda curve: curve.run.draw, reverse=True):
        scores = RULES[rule](curve, unseen) if curve.steps else None
        if scores is None or (unseen, "in") not in curve.accuracy:
            continue
        at = int(scores.argmax())
        if np.isfinite(scores[at]):
            choice = Selection(curve.run, curve.steps[at], float(curve.accuracy[unseen, "in"][at]))
            result.append((float(scores[at]), choice))
    return result


def searches(curves: Sequence[Curve]) -> dict[Search, list[Curve]]:
    """The draws of every search; a run with several unseen domains belongs to one search per domain."""
    grouped: dict[Search, list[Curve]] = {}
    for curve in curves:
        source = curve.run.train_domains[0] if curve.run.setting == "single" else ""
        for unseen in curve.run.test_domains:
            search = Search(curve.method, Column(unseen, source), curve.run.trial)
            grouped.setdefault(search, []).append(curve)
    return grouped
