"""Accuracy tables: one per experiment and selection rule, a row per method, mean ± standard error."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from domainwise.core.phrasing import counted
from domainwise.data.catalogue import DATASETS, usual_selection
from domainwise.protocol.dataset_names import title, titles
from domainwise.protocol.selection import Curve, method, searches
from domainwise.protocol.statistics import ARROW, Difference, Estimate, Scores, average, estimate, paired, selected
from domainwise.sweep.collection import Collection, Experiment


@dataclass(frozen=True)
class Row:
    """One method's line, and how much was searched for it."""

    method: str
    cells: dict[str, Estimate]
    average: Estimate | None
    difference: Difference | None
    draws: int = 1
    trials: int = 1
    steps: int = 0


@dataclass(frozen=True)
class AccuracyTable:
    """Accuracies in per cent on unseen domains; `selection` says how the reported points were chosen."""

    dataset: str
    selection: str
    baseline: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    setting: str = "multi"
    network: str = ""
    weights: str = ""
    precision: str = "fp32"
    augmentation: str = "none"
    image_size: int = 0
    called: str = ""
    """The dataset, told from others of the same title."""

    @classmethod
    def of(
        cls, dataset: str, selection: str, scores: Scores, order: Sequence[str] = (), baseline: str = "ERM"
    ) -> "AccuracyTable":
        """From selected scores; methods in the given order, the rest after them by name."""
        columns = in_order(dataset, {column for by_column in scores.values() for column in by_column})
        names = [name for name in order if name in scores] + sorted(set(scores) - set(order))
        rows = []
        for name in names:
            by_column = scores[name]
            _, bracket, variant = name.partition(" (")
            base = next((b for b in (f"{baseline}{bracket}{variant}", baseline) if b in scores), None)
            gap = paired(by_column, scores[base]) if base is not None and name != base else None
            cells = {c: estimate(list(by_column[c].values())) for c in columns if c in by_column}
            rows.append(Row(name, cells, average(by_column, columns), gap))
        return cls(dataset, selection, baseline, tuple(columns), tuple(rows))

    @property
    def title(self) -> str:
        where = "the unseen domain" if self.setting == "multi" else "unseen domains after training on one"
        return f"{self.called or title(self.dataset)}: accuracy on {where}, per cent"

    @property
    def caption(self) -> str:
        """What a number is worth nothing without."""
        efforts: dict[str, list[str]] = {}
        for row in self.rows:
            if row.steps:
                effort = f"{counted(row.steps, 'step')}, {counted(row.draws, 'draw')} x {counted(row.trials, 'trial')}"
                efforts.setdefault(effort, []).append(row.method)
        told = [effort if len(efforts) == 1 else f"{', '.join(who)}: {effort}" for effort, who in efforts.items()]
        if len({row.draws for row in self.rows if row.draws}) > 1:
            told.append("more draws are more to choose from: only rows with as many compare")
        context = "; ".join([*self.made_with(), *told])
        return f"mean ± standard error; selected by {self.selection} validation" + (f"; {context}" if context else "")

    def made_with(self) -> list[str]:
        """Network and start, and what is not as usual."""
        usual = DATASETS[self.dataset].image_size if self.dataset in DATASETS else self.image_size
        facts = {
            self.network: bool(self.network),
            f"from {Path(self.weights.rpartition('#')[0]).name}": bool(self.weights),
            self.precision: self.precision != "fp32",
            f"images of {self.image_size} pixels": self.image_size not in (0, usual),
            f"augmentation {self.augmentation}": self.augmentation != "none",
        }
        return [fact for fact, tell in facts.items() if tell]

    def sentence(self, name: str) -> str:
        """What the row means, in words."""
        row = next((row for row in self.rows if row.method == name), None)
        if row is None or row.difference is None:
            return f"{name} and {self.baseline} were not both run: nothing to compare."
        gap = row.difference
        return (
            f"On domains they never saw, {name} is {gap.verdict} {self.baseline}: {gap} points over "
            f"{counted(gap.n, 'pair')} of runs, ahead in {gap.ahead} of them (sign test p = {gap.sign_p:.2g})."
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def tables(collection: Collection, rule: str | None = None, baseline: str = "ERM") -> list[AccuracyTable]:
    """A table per group of experiments that the rule (by default each dataset's usual one) can judge."""
    found = []
    for group in groups(collection):
        chosen = rule or usual_selection(group.experiment.dataset)
        found.append(table_of(group, selected(group.curves, chosen), chosen, baseline))
    names = titles(table.dataset for table in found)
    return [replace(table, called=names[table.dataset]) for table in found if table.rows]


@dataclass(frozen=True)
class Group:
    """What goes into one table: the first of the experiments, and the curves of all."""

    experiment: Experiment
    curves: tuple[Curve, ...]


def groups(collection: Collection) -> list[Group]:
    """Experiments that differ in their steps only are put together, as in the paper, where no method occurs twice."""
    alike: dict[Experiment, list[tuple[Experiment, list[Curve]]]] = {}
    for experiment, curves in collection.experiments().items():
        alike.setdefault(replace(experiment, steps=0), []).append((experiment, curves))
    result: list[Group] = []
    for members in alike.values():
        names = [name for _, curves in members for name in {method(curve.run) for curve in curves}]
        together = [members] if len(names) == len(set(names)) else [[one] for one in members]
        result += [Group(own[0][0], tuple(curve for _, curves in own for curve in curves)) for own in together]
    return result


def table_of(group: Group, scores: Scores, rule: str, baseline: str = "ERM") -> AccuracyTable:
    """The table of selected scores, each row with how much was searched for it."""
    plain = AccuracyTable.of(group.experiment.dataset, rule, scores, _registered(scores), baseline)
    rows = []
    for row in plain.rows:
        own = [curve for curve in group.curves if method(curve.run) == row.method]
        draws, trials = max(map(len, searches(own).values())), len({curve.run.trial for curve in own})
        rows.append(replace(row, draws=draws, trials=trials, steps=own[0].run.steps))
    found = group.experiment
    return replace(
        plain,
        rows=tuple(rows),
        setting=found.setting,
        network=found.network,
        weights=next((curve.run.weights for curve in group.curves), ""),
        precision=found.precision,
        augmentation=found.augmentation,
        image_size=found.image_size,
    )


def _registered(scores: Scores) -> list[str]:
    """Methods in the order of the registry, variants after their algorithm."""
    from domainwise.algorithms import ALGORITHMS

    return [
        name for algorithm in ALGORITHMS for name in sorted(scores, key=_natural) if name.split(" (")[0] == algorithm
    ]


def _natural(name: str) -> list[tuple[float, str]]:
    """Numbers inside names count as numbers: "batch_size 8" comes before "batch_size 16"."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", name)
    return [(float(part), "") if i % 2 else (0.0, part) for i, part in enumerate(parts)]


def in_order(dataset: str, columns: set[str]) -> list[str]:
    """Domains in the dataset's order, and unknown ones by name."""
    known = list(DATASETS[dataset].domains) if dataset in DATASETS else []
    rank = {domain: i for i, domain in enumerate(known)}
    return sorted(columns, key=lambda column: [(rank.get(part, len(known)), part) for part in column.split(ARROW)])
