"""compare: which method to ship, by accuracy on domains left out, and whether the gaps are more than noise.

Every method is trained with each domain left out in turn. Candidate and step are selected by training-domain
validation, which does not look at the domain left out, so the accuracies there are honest estimates. Gaps are taken
over pairs of runs that share domain, trial and splits. They are tested against the noise of runs on these domains; how
much other domains differ from these, a handful of domains cannot tell.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from scipy import stats

from domainwise.core.phrasing import counted
from domainwise.core.table import Table, Tabular
from domainwise.data.environments import Environments
from domainwise.models.fit import records_folder
from domainwise.models.search import Candidate, finished_curves, plan_candidates, train_candidates
from domainwise.models.tune import Tuning, choose
from domainwise.protocol.options import TrainingKeywords
from domainwise.protocol.selection import Method
from domainwise.protocol.statistics import Difference, paired, selected
from domainwise.sweeps.events import Event, Settings
from domainwise.sweeps.plan import Plan
from domainwise.sweeps.plan_run import training_options
from domainwise.sweeps.tables import AccuracyTable

RULE = "training-domain"
LEVEL = 0.05
"""The probability that a gap is called real although it is noise, for all comparisons together."""


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """Which method to ship: accuracies on domains left out, and whether the gaps to the baseline are noise."""

    table: AccuracyTable
    gaps: Mapping[str, Difference]  # to the baseline
    tuning: Tuning

    def as_table(self) -> Table:
        return replace(self.table.as_table(), notes=(self.sentence,))

    def to_records(self) -> list[dict[str, Any]]:
        return self.table.to_records()

    @property
    def baseline(self) -> str:
        return self.table.baseline

    def p(self, name: str) -> float:
        """Paired t-test: the probability of a gap at least this large if there is none.

        Accuracies of few images are coarse, so that gaps may be equal by chance: p is at least that of a sign test.
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
            "candidate": chosen.number,
            "table": self.table.as_json(),
        }


def compare(
    environments: Environments | Path | str,
    algorithms: str | Sequence[str] = ("ERM", "CORAL", "DAT"),
    *,
    candidates: int = 3,
    trials: int = 3,
    test_domains: Sequence[str | int] | str | int = (),
    workers: int | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    data_root: Path | None = None,
    progress: Callable[[Event], None] = lambda _: None,
    **options: Unpack[TrainingKeywords],
) -> Comparison:
    """Trains every method with each domain left out in turn, and says which one to ship.

    The search is that of `tune`, whose arguments these are. `out` is the folder of the runs; the same call continues.
    """
    training = training_options(device, data_root, **options)
    with records_folder(out) as folder:
        plan = plan_candidates(environments, algorithms, training, candidates, trials, test_domains, folder)
        train_candidates(plan, Settings(folder, device, data_root, retry=True), workers, progress)
        return comparison(plan, folder)


def comparison(plan: Plan, out: Path) -> Comparison:
    """From the records of a search."""
    tuning = choose(plan, out)
    runs = plan.runs()
    scores = {str(method): by_column for method, by_column in selected(finished_curves(runs, out), RULE).items()}
    finished = {candidate.algorithm for candidate in tuning.tried}
    methods = [name for name in plan.algorithms if name in finished and name in scores]
    baseline = "ERM" if "ERM" in methods else methods[0]
    table = AccuracyTable.of(plan.dataset, RULE, {Method(name): scores[name] for name in methods}, methods, baseline)
    rows = [replace(row, draws=plan.draws, trials=plan.trials, steps=runs[0].steps) for row in table.rows]
    gaps = {name: paired(scores[name], scores[baseline]) for name in methods if name != baseline}
    return Comparison(
        replace(table, rows=tuple(rows), network=runs[0].network, searched="candidate"),
        {name: gap for name, gap in gaps.items() if gap is not None},
        tuning,
    )
