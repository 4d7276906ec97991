"""Model selection: which draw and which step to report, from records alone. A number without its rule is not a result.

Each rule looks at the curves of all draws of one algorithm, dataset, unseen domain and trial, picks one point, and
reports the unseen domain's `in` accuracy there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from domainwise.records import Record
from domainwise.runs import Run

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """The accuracies of one run over its evaluations."""

    run: Run
    steps: tuple[int, ...]
    accuracy: dict[tuple[str, str], Floats]  # (domain, split) -> one value per step

    @classmethod
    def of(cls, run: Run, records: Iterable[Record]) -> "Curve":
        values: dict[tuple[str, str], dict[int, float]] = {}
        for record in records:
            values.setdefault((record.domain, record.split), {})[record.step] = record.accuracy
        steps = tuple(sorted(set.intersection(*(set(v) for v in values.values())))) if values else ()
        return cls(run, steps, {part: np.array([v[step] for step in steps]) for part, v in values.items()})


@dataclass(frozen=True)
class Choice:
    """The point a rule picked, and what is reported of it."""

    run: Run
    step: int
    accuracy: dict[str, float]  # unseen domain -> accuracy on its `in` split


Rule = Callable[[Sequence[Curve]], Choice]


def training_domain(curves: Sequence[Curve]) -> Choice:
    """Over all draws and evaluations, the highest mean `out` accuracy of the training domains."""

    def score(curve: Curve) -> Floats:
        return np.mean([curve.accuracy[domain, "out"] for domain in curve.run.train_domains], axis=0)

    return _best(curves, score)


def oracle(curves: Sequence[Curve]) -> Choice:
    """At the last evaluation only, the highest mean `out` accuracy of the unseen domains: test-domain validation."""

    def score(curve: Curve) -> Floats:
        unseen = np.mean([curve.accuracy[domain, "out"] for domain in curve.run.test_domains], axis=0)
        return np.where(np.arange(len(unseen)) == len(unseen) - 1, unseen, -np.inf)

    return _best(curves, score)


RULES: dict[str, Rule] = {"training-domain": training_domain, "oracle": oracle}


def _best(curves: Sequence[Curve], score: Callable[[Curve], Floats]) -> Choice:
    """The first of the highest: the lowest draw, then the earliest step."""
    ordered = sorted((curve for curve in curves if curve.steps), key=lambda curve: curve.run.draw)
    if not ordered:
        raise ValueError("no evaluations to select from")
    scores = [score(curve) for curve in ordered]
    winner = int(np.argmax([values.max() for values in scores]))
    curve, at = ordered[winner], int(scores[winner].argmax())
    reported = {domain: float(curve.accuracy[domain, "in"][at]) for domain in curve.run.test_domains}
    return Choice(curve.run, curve.steps[at], reported)
