"""The accuracy table of one experiment and selection rule: a row per method, mean ± standard error."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from domainwise.core.phrasing import counted
from domainwise.core.table import NOT_RUN, Bold, Table, Tabular
from domainwise.data.catalogue import DATASETS
from domainwise.protocol.dataset_names import title
from domainwise.protocol.metrics import ACCURACY, Metric
from domainwise.protocol.runs import WeightsReference
from domainwise.protocol.selection import Column, Method
from domainwise.protocol.statistics import (
    AVERAGE,
    Difference,
    Estimate,
    Scores,
    average,
    estimate,
    paired,
    the_test,
)
from domainwise.sweeps.domainbed import NETWORK as DOMAINBED

NOT_JUDGED = "not judged"
"""In a cell that was run, but has nothing that the selection rule looks at."""


@dataclass(frozen=True)
class Row:
    """One method's accuracies, and how much was searched for it."""

    method: Method
    cells: dict[Column, Estimate]
    average: Estimate | None
    difference: Difference | None
    draws: int = 1
    trials: int = 1
    steps: int = 0
    not_judged: tuple[Column, ...] = ()
    """Columns that were run, but where the rule can judge no run."""

    def estimate(self, column: Column) -> Estimate | None:
        """Of one column, or the average over all."""
        return self.average if column == AVERAGE else self.cells.get(column)

    def absent(self, column: Column) -> str:
        """Why it has no estimate of a column."""
        return NOT_JUDGED if column in self.not_judged else NOT_RUN

    def as_json(self) -> dict[str, Any]:
        cells = {str(column): cell.as_json() for column, cell in self.cells.items()}
        difference = None if self.difference is None else self.difference.as_json()
        return asdict(replace(self, cells={})) | {
            "method": str(self.method),
            "cells": cells,
            "average": None if self.average is None else self.average.as_json(),
            "difference": difference,
            "not_judged": [str(column) for column in self.not_judged],
        }

    def as_domainbed(self) -> "Row":
        """With DomainBed's standard errors."""
        cells = {column: cell.as_domainbed() for column, cell in self.cells.items()}
        return replace(self, cells=cells, average=None if self.average is None else self.average.as_domainbed())


@dataclass(frozen=True, repr=False)
class AccuracyTable(Tabular):
    """Accuracies in per cent, or another metric, on unseen domains; `selection` says how points were chosen."""

    dataset: str
    selection: str
    baseline: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    setting: str = "multi"
    network: str = ""
    weights: str = ""
    precision: str = "fp32"
    augmentation: str = "none"
    image_size: int = 0
    recipe: str = ""
    called: str = ""
    """The dataset's title, distinct from those of other datasets."""
    searched: str = "draw"
    """What the rows were selected from: draws, or the candidates of a comparison."""
    partial: bool = False
    """Whether runs are counted that failed or are not finished."""
    completeness: tuple[str, ...] = ()
    """Sentences on the runs that failed, diverged or are not finished."""
    metric: Metric = ACCURACY

    @classmethod
    def of(
        cls,
        dataset: str,
        selection: str,
        scores: Scores,
        algorithms: Sequence[str] = (),
        baseline: str = "ERM",
        metric: Metric = ACCURACY,
        was_run: Mapping[Method, Set[Column]] | None = None,
        columns: Set[Column] = frozenset(),
    ) -> "AccuracyTable":
        """From selected scores; rows in the order of these algorithms, the rest after them by name.

        `was_run` says which columns the methods were run on: a method or a column without a score keeps its place, and
        there is no average over the others alone. `columns` are there whether a method was run on them or not.
        """
        run_on = {method: set(by_column) for method, by_column in scores.items()}
        for method, found in (was_run or {}).items():
            run_on[method] = run_on.get(method, set()) | found
        shown = in_order(dataset, set(columns).union(*run_on.values()))
        rank = {name: i for i, name in enumerate(algorithms)}
        rows = []
        for method in sorted(run_on, key=lambda method: _place(method, rank)):
            by_column = scores.get(method, {})
            other = _baseline(method, baseline, scores)
            gap = paired(by_column, scores[other], metric) if other not in (None, method) else None
            cells = {c: estimate(list(by_column[c].values()), metric) for c in shown if c in by_column}
            not_judged = tuple(c for c in shown if c in run_on[method] and c not in by_column)
            rows.append(Row(method, cells, average(by_column, shown, metric), gap, not_judged=not_judged))
        return cls(dataset, selection, baseline, tuple(shown), tuple(_tested_together(rows)), metric=metric)

    @property
    def title(self) -> str:
        where = "the unseen domain" if self.setting == "multi" else "unseen domains after training on one"
        label = " (partial)" if self.partial else ""
        return f"{self.called or title(self.dataset)}: {self.metric.title} on {where}{self.metric.unit}{label}"

    @property
    def caption(self) -> str:
        """The context every accuracy is reported with, and what its error is."""
        errors = "mean ± standard error over trials"
        if self.network == DOMAINBED:
            errors += " (DomainBed's: the population deviation / √n)"
        return f"{errors}; {self.context}"

    @property
    def context(self) -> str:
        """The selection rule, chance, what runs were made with and how many there are."""
        efforts: dict[str, list[str]] = {}
        for row in self.rows:
            if row.steps:
                values = counted(row.draws, self.searched)
                effort = f"{counted(row.steps, 'step')}, {values} x {counted(row.trials, 'trial')}"
                efforts.setdefault(effort, []).append(str(row.method))
        facts = [effort if len(efforts) == 1 else f"{', '.join(names)}: {effort}" for effort, names in efforts.items()]
        if len({row.draws for row in self.rows if row.draws}) > 1:
            facts.append(f"more {self.searched}s are more to choose from: only rows with as many compare")
        chance = [] if self.chance is None else [f"chance {self.metric.format(self.chance)}"]
        by = "" if self.selection == "worst-subgroup" else self.metric.selecting
        rule = f"selected by {self.selection} validation{by}"
        return "; ".join([rule, *chance, *self.made_with(), *facts, *self.not_judged, *self.completeness])

    @property
    def not_judged(self) -> list[str]:
        """Which cells the rule could not fill, and that averages and differences do not cover them."""
        methods: dict[Column, list[str]] = {}
        for row in self.rows:
            for column in row.not_judged:
                methods.setdefault(column, []).append(str(row.method))
        if not methods:
            return []
        cells = [
            f"{column} ({'all methods' if len(names) == len(self.rows) else ', '.join(names)})"
            for column, names in methods.items()
        ]
        return [
            f"no run has what {self.selection} validation needs on {', '.join(cells)}: no average over the rest, and "
            "differences are over the rest alone"
        ]

    @property
    def is_empty(self) -> bool:
        """Whether no cell has a number."""
        return not any(row.cells for row in self.rows)

    @property
    def chance(self) -> float | None:
        """That of guessing any class as often as any other; None where it is not known."""
        return self.metric.chance(len(DATASETS[self.dataset].classes)) if self.dataset in DATASETS else None

    def made_with(self) -> list[str]:
        """Network and initial weights, and every setting that is not the usual one."""
        usual = DATASETS[self.dataset].image_size if self.dataset in DATASETS else self.image_size
        facts = {
            self.network: bool(self.network),
            f"from {Path(WeightsReference.parse(self.weights).file).name}": bool(self.weights),
            self.precision: self.precision != "fp32",
            f"images of {self.image_size} pixels": self.image_size not in (0, usual),
            f"augmentation {self.augmentation}": self.augmentation != "none",
            self.recipe: bool(self.recipe),
        }
        return [fact for fact, shown in facts.items() if shown]

    def sentence(self, method: Method | str) -> str:
        """The comparison of a row with the baseline, in words."""
        row = next((row for row in self.rows if str(row.method) == str(method)), None)
        if row is None or row.difference is None:
            return f"{method} and {self.baseline} were not both run: nothing to compare."
        return f"{row.difference.sentence(method, self.baseline)}."

    @property
    def verdict(self) -> str:
        """Whether any method is clearly ahead of the baseline, in a sentence or two."""
        gaps = {str(row.method): row.difference for row in self.rows if row.difference is not None}
        if not gaps:
            return f"No method was compared with {self.baseline}."
        best = max(gaps, key=lambda name: gaps[name].gain)
        ahead = [name for name, gap in gaps.items() if gap.clear and gap.gain > 0]
        if not ahead:
            others = f"None of {len(gaps)} methods is clearly ahead of {self.baseline}. " if len(gaps) > 1 else ""
            return f"{others}{gaps[best].sentence(best, self.baseline)}."
        top = max(ahead, key=lambda name: gaps[name].gain)
        if len(ahead) == 1:
            return f"{gaps[top].sentence(top, self.baseline)}."
        several = f"{len(ahead)} of {len(gaps)} methods are clearly ahead of {self.baseline}"
        return f"{several}, most of all {top}: {gaps[top].measured}."

    @property
    def test(self) -> str:
        """What "clear" means in the sentences of this table; empty where nothing is compared."""
        differences = [row.difference for row in self.rows if row.difference is not None]
        return the_test(len(differences)) if differences else ""

    def as_table(self) -> Table:
        """The best of every column in bold; the average and the difference to the baseline last."""
        columns = (*self.columns, AVERAGE)
        known = {c: [e.mean for row in self.rows if (e := row.estimate(c)) is not None] for c in columns}
        best = {column: self.metric.best(means) for column, means in known.items()}
        rows = []
        for row in self.rows:
            cells = [_cell(row, column, best[column]) for column in columns]
            rows.append([str(row.method), *cells, str(row.difference or "")])
        headings = ["algorithm", *map(str, columns), f"minus {self.baseline}"]
        return Table(headings, rows, self.title, self.caption)

    def to_records(self) -> list[dict[str, Any]]:
        """One per cell and average; the difference to the baseline, over all domains, is in every one of a method."""
        return [
            {
                "dataset": self.dataset,
                "setting": self.setting,
                "network": self.network,
                "steps": row.steps,
                "selection": self.selection,
                "method": str(row.method),
                "domain": str(column),
                "mean": value.mean,
                "error": value.error,
                "trials": value.n,
                "draws": row.draws,
                "baseline": self.baseline,
                **_flat(row.difference),
                "metric": self.metric.name,
            }
            for row in self.rows
            for column in (*self.columns, AVERAGE)
            if (value := row.estimate(column)) is not None
        ]

    def as_json(self) -> dict[str, Any]:
        facts = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "searched"}
        facts["metric"] = self.metric.name
        return facts | {"columns": [*map(str, self.columns)], "rows": [row.as_json() for row in self.rows]}


def _tested_together(rows: Sequence[Row]) -> list[Row]:
    """The rows with differences that know of each other: the level of the test holds for all of them together."""
    differences = [row.difference for row in rows if row.difference is not None]
    return [
        row
        if row.difference is None
        else replace(row, difference=replace(row.difference, comparisons=len(differences)))
        for row in rows
    ]


def _flat(difference: Difference | None) -> dict[str, Any]:
    values = {} if difference is None else difference.as_json()
    names = {"difference": "mean", "difference error": "error", "pairs": "n", "p": "p", "verdict": "verdict"}
    return {heading: values.get(name) for heading, name in names.items()}


def _cell(row: Row, column: Column, best: float | None) -> str:
    value = row.estimate(column)
    return row.absent(column) if value is None else Bold(value) if value.mean == best else str(value)


def _baseline(method: Method, baseline: str, known: Iterable[Method]) -> Method | None:
    """The baseline in the same variant, or else the method of this name."""
    names = {str(one): one for one in known}
    return names.get(str(Method(baseline, method.variant)), names.get(baseline))


def _place(method: Method, rank: Mapping[str, int]) -> tuple[object, ...]:
    """Where a row comes: averaged weights after the last ones of the same trainings."""
    return rank.get(method.algorithm, len(rank)), _natural(str(replace(method, average=""))), method.average


def _natural(name: str) -> list[tuple[float, str]]:
    """Numbers inside names count as numbers: "batch_size 8" comes before "batch_size 16"."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", name)
    return [(float(part), "") if i % 2 else (0.0, part) for i, part in enumerate(parts)]


def in_order(dataset: str, columns: Iterable[Column]) -> list[Column]:
    """Domains in the dataset's order, and unknown ones by name."""
    known = list(DATASETS[dataset].domains) if dataset in DATASETS else []
    rank = {domain: i for i, domain in enumerate(known)}
    return sorted(
        columns, key=lambda column: [(rank.get(d, len(known)), d) for d in (column.source, column.unseen) if d]
    )
