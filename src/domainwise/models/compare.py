"""compare: which method to ship, by accuracy on domains left out, and whether the gaps are more than noise.

Every method is trained with each domain left out in turn. Draw and step are selected by training-domain validation,
which does not look at the domain left out, so the accuracies there are honest estimates. Gaps are taken over pairs of
runs that share domain, trial and splits. They are tested against the noise of runs on these domains; how much further
domains differ from these, a handful of them cannot tell.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy import stats

from domainwise.core.phrasing import counted
from domainwise.models.search import Candidate, Search
from domainwise.models.tune import Tuning, choose
from domainwise.protocol.selection import Method
from domainwise.protocol.statistics import Difference, paired, selected
from domainwise.sweep.tables import AccuracyTable

RULE = "training-domain"
LEVEL = 0.05
"""How often a gap may be called real that is noise of runs, all comparisons together."""


@dataclass(frozen=True)
class Comparison:
    """Which method to ship: accuracies on domains left out, and whether the gaps to the baseline are noise."""

    table: AccuracyTable
    gaps: Mapping[str, Difference]  # to the baseline
    tuning: Tuning

    @property
    def baseline(self) -> str:
        return self.table.baseline

    def p(self, name: str) -> float:
        """Paired t-test: how likely a gap at least this large is if there is none.

        Accuracies of few images are coarse, so that gaps may be equal by chance: never less than of a sign test.
        """
        gap = self.gaps[name]
        if gap.error is None or gap.mean == 0:
            return 1.0
        t = abs(gap.mean) / gap.error if gap.error else math.inf
        return max(gap.surest, float(2 * stats.t.sf(t, gap.n - 1)))

    def clear(self, name: str) -> bool:
        """Whether a gap to the baseline is more than noise, at this level for all comparisons together (Bonferroni)."""
        return self.p(name) <= LEVEL / len(self.gaps)

    @property
    def winner(self) -> str:
        """The best of those that are clearly ahead of the baseline; else the baseline, the simplest."""
        ahead = [name for name, gap in self.gaps.items() if gap.mean > 0 and self.clear(name)]
        return max(ahead, key=lambda name: self.gaps[name].mean, default=self.baseline)

    @property
    def sentence(self) -> str:
        if not self.gaps:
            return f"Only {self.baseline} was tried: nothing to compare it with."
        name = self.winner
        if name != self.baseline:
            gap = self.gaps[name]
            return (
                f"Ship {name}: on the domains left out it is ahead of {self.baseline} by {gap} points over "
                f"{counted(gap.n, 'pair')} of runs (p = {self.p(name):.2g}), more than noise."
            )
        best = max(self.gaps, key=lambda other: self.gaps[other].mean)
        gap = self.gaps[best]
        return (
            f"Ship {name}: nothing is ahead of it by more than noise (the best other, {best}: {gap} points over "
            f"{counted(gap.n, 'pair')} of runs, p = {self.p(best):.2g})."
        )

    def chosen(self) -> Candidate:
        """The winner with the hyper-parameters and steps that did best on the domains left out."""
        return next(candidate for candidate in self.tuning.tried if candidate.algorithm == self.winner)

    def as_json(self) -> dict[str, Any]:
        chosen = self.chosen()
        return {
            "winner": self.winner,
            "sentence": self.sentence,
            "clear": {name: self.clear(name) for name in self.gaps},
            "p": {name: self.p(name) for name in self.gaps},
            "hparams": chosen.hparams,
            "steps": chosen.steps,
            "table": self.table.as_json(),
        }


def comparison(search: Search, out: Path) -> Comparison:
    """From the records of a search."""
    tuning = choose(search, out)
    scores = {str(method): by_column for method, by_column in selected(search.curves(out), RULE).items()}
    finished = {candidate.algorithm for candidate in tuning.tried}
    whole = [name for name in search.algorithms if name in finished and name in scores]
    baseline = "ERM" if "ERM" in whole else whole[0]
    by_method = {Method(name): scores[name] for name in whole}
    plain = AccuracyTable.of(search.dataset.name, RULE, by_method, whole, baseline)
    first = search.runs[0]
    rows = [replace(row, draws=search.draws, trials=search.trials, steps=first.steps) for row in plain.rows]
    table = replace(plain, rows=tuple(rows), network=first.network)
    gaps = {name: paired(scores[name], scores[baseline]) for name in whole if name != baseline}
    return Comparison(table, {name: gap for name, gap in gaps.items() if gap is not None}, tuning)
