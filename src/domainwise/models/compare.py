"""compare: which method to choose, by accuracy on domains left out, and which are clearly ahead of the baseline.

Every method is trained with each domain left out in turn. Candidate and step are selected by training-domain
validation, which does not look at the domain left out, so the accuracies there are honest estimates. Gaps are taken
over pairs of runs that share domain, trial and splits, and tested as in every table (protocol/statistics.py).

Every training also averages its weights, by default with SMA, which costs next to nothing: the averaged weights are a
method of their own in the table, and one more comparison each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.core.table import Table, Tabular
from domainwise.data.environments import Environments
from domainwise.models.budget import CANDIDATES, TRIALS, parse_budget, within_budget
from domainwise.models.fit import records_folder
from domainwise.models.search import Candidate, check_metric, finished_curves, plan_candidates, train_candidates
from domainwise.models.tune import Tuning, choose
from domainwise.protocol.metrics import ACCURACY, Metric, find_metric
from domainwise.protocol.network_names import network_title
from domainwise.protocol.options import TrainingKeywords, TrainingOptions
from domainwise.protocol.selection import Method
from domainwise.protocol.statistics import Difference, Scores, paired, selected
from domainwise.sweeps.accuracy_table import AccuracyTable
from domainwise.sweeps.events import Event, Settings
from domainwise.sweeps.plan import Plan
from domainwise.sweeps.plan_run import features_train, training_options

USUAL = ("ERM", "CORAL", "DAT")
"""What a comparison is of, unless methods are named."""
RULE = "training-domain"
AVERAGE = "sma"
"""What a comparison averages weights by, unless another is named."""


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """Which method to choose: accuracies on domains left out, and which differences to the baseline are clear."""

    table: AccuracyTable
    tuning: Tuning
    over_average: Mapping[str, Difference] = field(default_factory=dict)
    """{method: its difference to the averaged weights of the baseline}."""
    averaged_baseline: str = ""
    reduced: str = ""
    """What was left out to fit a budget of time, in words."""

    def as_table(self) -> Table:
        return replace(self.table.as_table(), notes=tuple(filter(None, (self.sentence, self.reduced))))

    def to_records(self) -> list[dict[str, Any]]:
        return self.table.to_records()

    @property
    def baseline(self) -> str:
        return self.table.baseline

    @property
    def gaps(self) -> Mapping[str, Difference]:
        """{method: its difference to the baseline}."""
        return {str(row.method): row.difference for row in self.table.rows if row.difference is not None}

    @property
    def winner(self) -> str:
        """The best of those that are clearly ahead of the baseline; else the baseline, the simplest.

        Where the averaged weights of the baseline are among them, another must be clearly ahead of those, too.
        """
        return self.averaged_baseline if self._is_average_enough else self._best_ahead

    @property
    def _best_ahead(self) -> str:
        ahead = [name for name, gap in self.gaps.items() if gap.gain > 0 and gap.clear]
        return max(ahead, key=lambda name: self.gaps[name].gain, default=self.baseline)

    @property
    def _is_average_enough(self) -> bool:
        """Whether averaging the baseline is clearly better than the baseline, and the best not clearly than that."""
        gap, best = self.gaps.get(self.averaged_baseline), self.over_average.get(self._best_ahead)
        return gap is not None and gap.gain > 0 and gap.clear and best is not None and not best.clear

    @property
    def sentence(self) -> str:
        if not self.gaps:
            return f"Only {self.baseline} was tried: nothing to compare it with."
        name = self.winner
        if name != self.baseline:
            why = self.gaps[name].sentence(name, self.baseline)
            if self._is_average_enough:
                best = self._best_ahead
                why = f"{why}; {self.over_average[best].sentence(best, name)}"
            return f"Ship {name}: on the domains left out, {why}."
        best = max(self.gaps, key=lambda other: self.gaps[other].gain)
        gap = self.gaps[best].sentence(best, self.baseline)
        return f"Ship {name}: on the domains left out, no other is clearly ahead of it; {gap}."

    def chosen(self) -> Candidate:
        """The winner with the hyper-parameters and steps that did best on the domains left out."""
        return next(candidate for candidate in self.tuning.tried if str(candidate.method) == self.winner)

    def as_json(self) -> dict[str, Any]:
        chosen = self.chosen()
        return {
            "winner": self.winner,
            "algorithm": chosen.algorithm,
            "average": chosen.average,
            "sentence": self.sentence,
            "clear": {name: gap.clear for name, gap in self.gaps.items()},
            "p": {name: gap.p for name, gap in self.gaps.items()},
            "hparams": chosen.hparams,
            "steps": chosen.steps,
            "candidate": chosen.number,
            "table": self.table.as_json(),
            "reduced": self.reduced,
        }


def compare(
    environments: Environments | Path | str,
    algorithms: str | Sequence[str] | None = None,
    *,
    candidates: int | None = None,
    trials: int | None = None,
    test_domains: Sequence[str | int] | str | int = (),
    workers: int | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    data_root: Path | None = None,
    progress: Callable[[Event], None] = lambda _: None,
    budget: str = "none",
    metric: str = "accuracy",
    **options: Unpack[TrainingKeywords],
) -> Comparison:
    """Trains every method with each domain left out in turn, and says which one to choose.

    By default the methods are ERM, CORAL and DAT, without CORAL where no features train.
    The search is that of `tune`, whose arguments these are, with 3 candidates and 3 trials unless others are given.
    `out` is the folder of the runs; the same call continues. Every training also averages its weights (`average`, by
    default "sma"; "none" turns it off). A `budget` such as "45m" or "8h" is kept by fewer candidates, steps and trials
    than planned, but for those given here (`reduced` of the result says which); "auto" is 30 minutes on a CPU. With
    another `metric` everything is selected, compared and shown by that (see `protocol.metrics`).
    """
    network = options.get("network") or options.get("weights")
    given = {"candidates": candidates, "trials": trials, "steps": options.get("steps"), "network": network}
    keep = [name for name, value in given.items() if value]
    seconds, shown = parse_budget(budget, device), find_metric(metric)
    options.setdefault("average", AVERAGE)
    training = training_options(device, data_root, **options)
    numbers = CANDIDATES if candidates is None else candidates, TRIALS if trials is None else trials
    with records_folder(out) as folder:
        settings = Settings(folder, device, data_root, retry=True)
        methods = usual_algorithms(training) if algorithms is None else algorithms
        plan = plan_candidates(environments, methods, training, *numbers, test_domains, folder)
        check_metric(plan, shown, data_root)
        budgeted = within_budget(plan, settings, seconds, workers=workers, keep=keep)
        budgeted.store(folder)
        train_candidates(budgeted.plan, settings, workers, progress)
        return comparison(budgeted.plan, folder, budgeted.reduction, shown)


def usual_algorithms(options: TrainingOptions) -> tuple[str, ...]:
    """What a comparison with these options is of by default: methods that only change features need some that train."""
    trains = options.network is None or features_train(options, options.network)
    return tuple(name for name in USUAL if trains or not ALGORITHMS[name].moves_features)


def comparison(plan: Plan, out: Path, reduced: str = "", metric: Metric = ACCURACY) -> Comparison:
    """From the records of a search; `reduced` says what a budget left out of it."""
    tuning = choose(plan, out, metric)
    runs = plan.runs()
    scores = selected(finished_curves(runs, out), RULE, metric)
    finished = {candidate.method for candidate in tuning.tried}
    methods = {method: scores[method] for method in scores if method in finished}
    if not methods:
        raise UserError(
            f"{metric.name} is not known at every evaluation of these runs{metric.needs_note}: choose another",
            argument="metric",
        )
    names = [name for name in plan.algorithms if Method(name) in methods]
    baseline = "ERM" if "ERM" in names else names[0]
    table = AccuracyTable.of(plan.dataset, RULE, methods, names, baseline, metric)
    rows = [replace(row, draws=plan.draws, trials=plan.trials, steps=runs[0].steps) for row in table.rows]
    table = replace(table, rows=tuple(rows), network=network_title(runs[0].network), searched="candidate")
    averaged = Method(baseline, average=plan.options.average)
    return Comparison(table, tuning, _over_average(methods, averaged, len(rows) - 1, metric), str(averaged), reduced)


def _over_average(methods: Scores, averaged: Method, comparisons: int, metric: Metric) -> dict[str, Difference]:
    """The differences of other algorithms to averaged weights of the baseline, besides so many comparisons."""
    others = [method for method in methods if averaged.average and method.algorithm != averaged.algorithm]
    gaps = {str(method): paired(methods[method], methods[averaged], metric) for method in others if averaged in methods}
    return {name: replace(gap, comparisons=comparisons + len(gaps)) for name, gap in gaps.items() if gap is not None}
