"""The paper's numbers beside ours, cell by cell, with how much was searched; what was not run is marked."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from domainwise.core.table import NOT_RUN, Table, Tabular
from domainwise.data.catalogue import DATASETS
from domainwise.paper import presets
from domainwise.paper.conditions import Conditions, differences
from domainwise.paper.tables import OVER_DATASETS, TABLES, PaperTable, Published, find_table
from domainwise.protocol.selection import Column, Method
from domainwise.protocol.statistics import AVERAGE
from domainwise.sweeps.accuracy_table import AccuracyTable, Row
from domainwise.sweeps.collection import Collection
from domainwise.sweeps.domainbed import NETWORK as DOMAINBED
from domainwise.sweeps.tables import tables

ERRORS = "Standard errors of both over trials, by DomainBed's formula: the population deviation / √n."


@dataclass(frozen=True)
class ComparedCell:
    """One printed accuracy, and ours if it was run."""

    paper: Published
    mean: float | None = None
    error: float | None = None
    ours: Conditions | None = None

    @property
    def column(self) -> Column:
        return Column(self.paper.domain, self.paper.train or "")

    @property
    def method(self) -> Method:
        return Method(self.paper.algorithm, self.paper.variant)

    @property
    def effort(self) -> str:
        return f"{self.ours.draws} x {self.ours.trials} x {self.ours.steps}" if self.ours is not None else ""


@dataclass(frozen=True, repr=False)
class PaperComparison(Tabular):
    """A table of the paper with ours beside every cell."""

    paper: PaperTable
    cells: tuple[ComparedCell, ...]

    @property
    def differences(self) -> list[str]:
        """Where our searches differ from the paper's, in words."""
        known = ((c.paper.search, c.ours) for c in self.cells if c.ours and c.paper.dataset != OVER_DATASETS)
        return differences(self.paper, known)

    def as_table(self) -> Table:
        rows = []
        for cell in self.cells:
            paper, ours = printed(cell.paper.mean, cell.paper.error), printed(cell.mean, cell.error)
            gap = f"{cell.mean - cell.paper.mean:+.1f}" if cell.mean is not None else ""
            labels = (cell.paper.dataset, str(cell.method), str(cell.column), cell.paper.selection)
            rows.append([*labels, paper, ours, gap, cell.effort])
        headings = ("dataset", "algorithm", "unseen", "selection", "paper", "ours", "gap", "draws x trials x steps")
        unlike = self.differences
        notes = [*self.paper.notes, ERRORS, *([f"Ours, unlike the paper: {'; '.join(unlike)}."] if unlike else [])]
        title = f"Table {self.paper.number} ({self.paper.label}): {self.paper.title}"
        return Table(headings, rows, title, notes=notes, labels=4)

    def to_records(self) -> list[dict[str, Any]]:
        """One per cell of the paper; ours are None where they were not run."""
        return [
            {
                "dataset": cell.paper.dataset,
                "setting": cell.paper.setting,
                "method": str(cell.method),
                "domain": str(cell.column),
                "selection": cell.paper.selection,
                "paper mean": cell.paper.mean,
                "paper error": cell.paper.error,
                "our mean": cell.mean,
                "our error": cell.error,
                **{name: getattr(cell.ours, name, None) for name in ("draws", "trials", "steps")},
            }
            for cell in self.cells
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.paper.number,
            "label": self.paper.label,
            "notes": list(self.paper.notes),
            "differences": self.differences,
            "cells": [asdict(cell) for cell in self.cells],
        }


def compare(name: str, collection: Collection) -> PaperComparison:
    """Every cell of a table of the paper, with ours by the same selection rule."""
    paper = find_table(name)
    ours = {rule: tables(collection, _rule(rule)) for rule in {cell.selection for cell in paper.published}}
    cells = [_match(cell, ours[cell.selection]) for cell in paper.published]
    averaged = (_over_datasets(cell, cells) if cell.paper.dataset == OVER_DATASETS else cell for cell in cells)
    return PaperComparison(paper, tuple(averaged))


def _over_datasets(cell: ComparedCell, cells: list[ComparedCell]) -> ComparedCell:
    """The average over a table's datasets, if all were run; its effort is the least of theirs."""
    parts = [c for c in cells if c.method == cell.method and c.paper.dataset != OVER_DATASETS]
    means = [part.mean for part in parts if part.mean is not None]
    efforts = [part.ours for part in parts if part.ours is not None]
    if len(means) < len(parts):
        return cell
    least = Conditions(*(min(getattr(effort, name) for effort in efforts) for name in ("draws", "trials", "steps")))
    return replace(cell, mean=sum(means) / len(means), ours=least)


def _rule(selection: str) -> str:
    """Where the paper reports the last model of a single run, any rule that needs no choice will do."""
    return "oracle" if selection == "last" else selection


def _match(cell: Published, ours: list[AccuracyTable]) -> ComparedCell:
    for table in sorted(ours, key=lambda table: -max(row.steps for row in table.rows)):
        if (table.dataset, table.setting) != (cell.dataset, cell.setting):
            continue
        for method in _methods(cell):
            for row in table.rows:
                value = _value(row, table, cell) if row.method == method else None
                if value is not None:
                    return ComparedCell(cell, *value, _conditions(row, table))
    return ComparedCell(cell)


def printed_beside(table: AccuracyTable) -> dict[tuple[Method, Column], tuple[Published, PaperTable]]:
    """{(method, column): what the paper prints for it under the same rule, and where}.

    Of several tables the one with our network comes first, then the one that gives every domain.
    """
    beside: dict[tuple[Method, Column], tuple[Published, PaperTable]] = {}
    for paper in sorted(TABLES, key=lambda paper: _distance(paper, table)):
        for cell in paper.published:
            if (cell.dataset, cell.setting, _rule(cell.selection)) != (table.dataset, table.setting, table.selection):
                continue
            for row in table.rows:
                column = _column(cell)
                if row.method in _methods(cell) and column in (*row.cells, AVERAGE):
                    beside.setdefault((row.method, column), (cell, paper))
    return beside


def _distance(paper: PaperTable, table: AccuracyTable) -> tuple[bool, bool]:
    cells = [cell for cell in paper.published if cell.dataset == table.dataset]
    if not cells:
        return True, True
    network = presets.network(paper, cells[0].search)
    usual = DATASETS[table.dataset].network if table.dataset in DATASETS else None
    return (network or usual) != table.network, all(cell.domain == AVERAGE.unseen for cell in cells)


def _column(cell: Published) -> Column:
    """The column of our table that a printed number belongs to."""
    if cell.train is not None:
        return Column(cell.domain, cell.train)
    return AVERAGE if cell.setting == "single" else Column(cell.domain)


def _methods(cell: Published) -> list[Method]:
    """Our rows that may stand beside a printed one, best first."""
    return [Method(cell.algorithm, variant) for variant in ([cell.variant] if cell.variant else ["paper", ""])]


def _conditions(row: Row, table: AccuracyTable) -> Conditions:
    if table.network == DOMAINBED:  # its records do not name it
        return Conditions(row.draws, row.trials, row.steps)
    made_with = (table.network, table.weights, table.precision, table.augmentation, table.image_size)
    return Conditions(row.draws, row.trials, row.steps, *made_with)


def _value(row: Row, table: AccuracyTable, cell: Published) -> tuple[float, float | None] | None:
    """Our mean and its error by the paper's formula; an average over one training domain's targets has none."""
    if cell.domain == AVERAGE.unseen and cell.train is not None:
        values = [row.cells.get(column) for column in _columns_from(cell.train, table)]
        known = [value.mean for value in values if value is not None]
        return (sum(known) / len(known), None) if known and len(known) == len(values) else None
    column = _column(cell)
    value = row.estimate(column) if column != AVERAGE or _is_complete(table) else None
    if value is None:
        return None
    return value.mean, (value if table.network == DOMAINBED else value.as_domainbed()).error


def _columns_from(train: str, table: AccuracyTable) -> list[Column]:
    """The columns of all domains that a model trained on one domain is tested on."""
    if table.dataset not in DATASETS:
        return [column for column in table.columns if column.source == train]
    return [Column(domain, train) for domain in DATASETS[table.dataset].testable if domain != train]


def _is_complete(table: AccuracyTable) -> bool:
    """Whether a table has all columns of its dataset, so that its average is one over the dataset."""
    if table.dataset not in DATASETS:
        return True
    data = DATASETS[table.dataset]
    if table.setting == "multi":
        return {Column(domain) for domain in data.testable} <= set(table.columns)
    sources = [domain for domain in data.domains if domain not in (*data.validation, *data.unseen)]
    return {column for source in sources for column in _columns_from(source, table)} <= set(table.columns)


def printed(mean: float | None, error: float | None) -> str:
    if mean is None:
        return NOT_RUN
    return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"
