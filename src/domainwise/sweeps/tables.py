"""Accuracy tables: one per experiment and selection rule, a row per method, mean ± standard error."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError, unknown
from domainwise.core.phrasing import counted
from domainwise.core.table import NOT_RUN, Bold, Table, Tabular
from domainwise.data.catalogue import DATASETS, usual_selection
from domainwise.protocol.dataset_names import title, titles
from domainwise.protocol.runs import WeightsReference
from domainwise.protocol.selection import RULES, Column, Curve, Method, searches
from domainwise.protocol.statistics import (
    AVERAGE,
    Difference,
    Estimate,
    Scores,
    average,
    estimate,
    paired,
    selected,
    the_test,
)
from domainwise.sweeps.collection import Collection, Experiment, experiment
from domainwise.sweeps.completeness import Completeness
from domainwise.sweeps.domainbed import NETWORK as DOMAINBED
from domainwise.sweeps.domainbed import collect_results


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

    def estimate(self, column: Column) -> Estimate | None:
        """Of one column, or the average over all."""
        return self.average if column == AVERAGE else self.cells.get(column)

    def as_json(self) -> dict[str, Any]:
        cells = {str(column): asdict(cell) for column, cell in self.cells.items()}
        difference = None if self.difference is None else self.difference.as_json()
        return asdict(replace(self, cells={})) | {
            "method": str(self.method),
            "cells": cells,
            "difference": difference,
        }

    def as_domainbed(self) -> "Row":
        """With DomainBed's standard errors."""
        cells = {column: cell.as_domainbed() for column, cell in self.cells.items()}
        return replace(self, cells=cells, average=None if self.average is None else self.average.as_domainbed())


@dataclass(frozen=True, repr=False)
class AccuracyTable(Tabular):
    """Accuracies in per cent on unseen domains; `selection` says how the reported points were chosen."""

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

    @classmethod
    def of(
        cls, dataset: str, selection: str, scores: Scores, algorithms: Sequence[str] = (), baseline: str = "ERM"
    ) -> "AccuracyTable":
        """From selected scores; rows in the order of these algorithms, the rest after them by name."""
        columns = in_order(dataset, {column for by_column in scores.values() for column in by_column})
        rank = {name: i for i, name in enumerate(algorithms)}
        rows = []
        for method in sorted(scores, key=lambda method: _place(method, rank)):
            by_column = scores[method]
            other = _baseline(method, baseline, scores)
            gap = paired(by_column, scores[other]) if other not in (None, method) else None
            cells = {c: estimate(list(by_column[c].values())) for c in columns if c in by_column}
            rows.append(Row(method, cells, average(by_column, columns), gap))
        return cls(dataset, selection, baseline, tuple(columns), tuple(_tested_together(rows)))

    @property
    def title(self) -> str:
        where = "the unseen domain" if self.setting == "multi" else "unseen domains after training on one"
        label = " (partial)" if self.partial else ""
        return f"{self.called or title(self.dataset)}: accuracy on {where}, per cent{label}"

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
        chance = [] if self.chance is None else [f"chance {self.chance:.1f}"]
        rule = f"selected by {self.selection} validation"
        return "; ".join([rule, *chance, *self.made_with(), *facts, *self.completeness])

    @property
    def chance(self) -> float | None:
        """The accuracy of guessing any class as often as any other; None for data that is not registered."""
        return 100 / len(DATASETS[self.dataset].classes) if self.dataset in DATASETS else None

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
        best = max(gaps, key=lambda name: gaps[name].mean)
        ahead = [name for name, gap in gaps.items() if gap.clear and gap.mean > 0]
        if not ahead:
            others = f"None of {len(gaps)} methods is clearly ahead of {self.baseline}. " if len(gaps) > 1 else ""
            return f"{others}{gaps[best].sentence(best, self.baseline)}."
        top = max(ahead, key=lambda name: gaps[name].mean)
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
        best = {column: max(means, default=None) for column, means in known.items()}
        rows = []
        for row in self.rows:
            cells = [_cell(row.estimate(column), best[column]) for column in columns]
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
            }
            for row in self.rows
            for column in (*self.columns, AVERAGE)
            if (value := row.estimate(column)) is not None
        ]

    def as_json(self) -> dict[str, Any]:
        facts = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "searched"}
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


def _cell(value: Estimate | None, best: float | None) -> str:
    return NOT_RUN if value is None else Bold(value) if value.mean == best else str(value)


def _baseline(method: Method, baseline: str, known: Iterable[Method]) -> Method | None:
    """The baseline in the same variant, or else the method of this name."""
    names = {str(one): one for one in known}
    return names.get(str(Method(baseline, method.variant)), names.get(baseline))


class AccuracyTables(tuple[AccuracyTable, ...], Tabular):
    """Several tables, shown below each other."""

    __slots__ = ()

    def to_records(self) -> list[dict[str, Any]]:
        return [record for one in self for record in one.to_records()]

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self)

    def __rich_console__(self, console: object, options: object) -> Iterator[Table]:
        return (one.as_table() for one in self)


def table(
    folder: Path | str, selection: str | None = None, *, baseline: str = "ERM", partial: bool = False
) -> AccuracyTables:
    """The accuracy tables of a folder: a sweep's, a published one, or DomainBed's output.

    `selection` is a rule of model selection, "all" for a table under each rule, or None for each dataset's usual rule.
    Runs that failed or are not finished are left out unless `partial`; captions say which.
    """
    return accuracy_tables(Path(folder), collect_results(Path(folder), partial), selection, baseline)


def accuracy_tables(folder: Path, collection: Collection, selection: str | None, baseline: str) -> AccuracyTables:
    """Those of a folder that has been read; without any, the error says why."""
    if selection not in (None, "all", *RULES):
        raise unknown("selection rule", selection, [*RULES, "all"])
    check_baseline(baseline, collection)
    if not collection.runs:
        raise UserError(f"{folder}: nothing to show; give the folder of a sweep or of DomainBed's output")
    rules = [*RULES] if selection == "all" else [selection]
    result = [one for rule in rules for one in tables(collection, rule, baseline)]
    if not result:
        rule = f"{selection} validation" if selection else "its dataset's selection rule"
        raise UserError(
            f"{folder}: nothing to show; no run there has the evaluations that {rule} needs; try the selection 'all'",
            argument="selection",
        )
    return AccuracyTables(result)


def check_baseline(baseline: str, collection: Collection) -> None:
    """A baseline is a registered algorithm or a method of the collection."""
    if baseline not in ALGORITHMS:
        known = {str(Method.of(run, average)) for run in collection.runs for average in {"", run.average}}
        if baseline not in known:
            raise unknown("algorithm", baseline, {*ALGORITHMS, *known})


def tables(collection: Collection, rule: str | None = None, baseline: str = "ERM") -> list[AccuracyTable]:
    """A table per group of experiments with the evaluations that the rule (by default the dataset's usual) needs."""
    result = []
    for group in groups(collection):
        chosen = rule or usual_selection(group.experiment.dataset)
        one = table_of(group, selected(group.curves, chosen), chosen, baseline)
        complete = completeness(collection, group)
        result.append(replace(one, partial=complete.is_partial, completeness=tuple(complete.sentences)))
    names = titles(one.dataset for one in result)
    return [replace(one, called=names[one.dataset], searched=collection.searched) for one in result if one.rows]


@dataclass(frozen=True)
class Group:
    """The contents of one table: the first of its experiments, and the curves of all."""

    experiment: Experiment
    curves: tuple[Curve, ...]


def groups(collection: Collection) -> list[Group]:
    """Experiments that differ in their steps only are put together, as in the paper, where no method occurs twice."""
    alike: dict[Experiment, list[tuple[Experiment, list[Curve]]]] = {}
    for one, curves in collection.experiments().items():
        alike.setdefault(replace(one, steps=0), []).append((one, curves))
    result: list[Group] = []
    for members in alike.values():
        methods = [method for _, curves in members for method in {curve.method for curve in curves}]
        together = [members] if len(methods) == len(set(methods)) else [[one] for one in members]
        result += [Group(parts[0][0], tuple(curve for _, curves in parts for curve in curves)) for parts in together]
    return result


def completeness(collection: Collection, group: Group) -> Completeness:
    """Which runs of a table's experiments did not come to a good end, whether they have a curve or not."""
    where = replace(group.experiment, steps=0)
    alike = (run for run in collection.incomplete if replace(experiment(run), steps=0) == where)
    return collection.completeness(alike)


def table_of(group: Group, scores: Scores, rule: str, baseline: str = "ERM") -> AccuracyTable:
    """The table of selected scores, each row with how much was searched for it."""
    shared = group.experiment
    bare = AccuracyTable.of(shared.dataset, rule, scores, list(ALGORITHMS), baseline)
    rows = []
    for row in bare.rows:
        curves = [curve for curve in group.curves if curve.method == row.method]
        members = max(len(curve.run.members) for curve in curves)  # of soups and ensembles
        draws = max(members, *map(len, searches(curves).values()))
        trials = len({curve.run.trial for curve in curves})
        shown = row.as_domainbed() if shared.network == DOMAINBED else row
        rows.append(replace(shown, draws=draws, trials=trials, steps=curves[0].run.steps))
    return replace(
        bare,
        rows=tuple(rows),
        setting=shared.setting,
        network=shared.network,
        weights=next((curve.run.weights for curve in group.curves), ""),
        precision=shared.precision,
        augmentation=shared.augmentation,
        image_size=shared.image_size,
        recipe=shared.recipe,
    )


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
