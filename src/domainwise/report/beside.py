"""The paper's numbers beside ours, cell by cell, with how much was searched; what was not run is marked."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from domainwise.paper.tables import Published, find_table
from domainwise.report.formats import bars
from domainwise.report.tables import AccuracyTable, Row, tables
from domainwise.sweep.collection import Collection


@dataclass(frozen=True)
class Comparison:
    """One printed accuracy and ours, if there is one."""

    paper: Published
    mean: float | None = None
    error: float | None = None
    draws: int = 0
    trials: int = 0
    steps: int = 0

    @property
    def place(self) -> str:
        source = f"{self.paper.train} → " if self.paper.train else ""
        return f"{source}{self.paper.domain}"

    @property
    def method(self) -> str:
        return f"{self.paper.algorithm} ({self.paper.variant})" if self.paper.variant else self.paper.algorithm

    @property
    def effort(self) -> str:
        return f"{self.draws} x {self.trials} x {self.steps}" if self.mean is not None else ""


def compare(name: str, collection: Collection) -> list[Comparison]:
    """Every cell of a table of the paper, with ours by the same selection rule."""
    published = find_table(name).published
    ours = {rule: tables(collection, _rule(rule)) for rule in {cell.selection for cell in published}}
    return [_match(cell, ours[cell.selection]) for cell in published]


def _rule(selection: str) -> str:
    """Where the paper reports the last model of a single run, any rule that needs no choice will do."""
    return "oracle" if selection == "last" else selection


def _match(cell: Published, ours: list[AccuracyTable]) -> Comparison:
    for table in sorted(ours, key=lambda table: -max(row.steps for row in table.rows)):
        if (table.dataset, table.setting) != (cell.dataset, cell.setting):
            continue
        variants = [cell.variant] if cell.variant else ["paper", ""]
        names = [f"{cell.algorithm} ({variant})" if variant else cell.algorithm for variant in variants]
        for name in names:
            for row in table.rows:
                value = _value(row, table, cell) if row.method == name else None
                if value is not None:
                    return Comparison(cell, *value, row.draws, row.trials, row.steps)
    return Comparison(cell)


def _value(row: Row, table: AccuracyTable, cell: Published) -> tuple[float, float | None] | None:
    """Our mean and standard error for a cell; an average over one training domain's targets has no error, as there."""
    if cell.domain == "average" and cell.train is not None:
        own = [row.cells.get(column) for column in table.columns if column.startswith(f"{cell.train} → ")]
        known = [value.mean for value in own if value is not None]
        return (sum(known) / len(known), None) if known and len(known) == len(own) else None
    column = f"{cell.train} → {cell.domain}" if cell.train else cell.domain
    whole = cell.domain == "average" or (cell.setting == "single" and cell.train is None)
    value = row.average if whole else row.cells.get(column)
    return (value.mean, value.error) if value is not None else None


def _printed(mean: float | None, error: float | None) -> str:
    if mean is None:
        return "not run"
    return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"


def _lines(rows: list[Comparison]) -> list[list[str]]:
    lines = []
    for row in rows:
        paper, ours = _printed(row.paper.mean, row.paper.error), _printed(row.mean, row.error)
        gap = f"{row.mean - row.paper.mean:+.1f}" if row.mean is not None else ""
        lines.append([row.paper.dataset, row.method, row.place, row.paper.selection, paper, ours, gap, row.effort])
    return lines


HEADINGS = ("dataset", "algorithm", "unseen", "selection", "paper", "ours", "gap", "draws x trials x steps")


def terminal(name: str, rows: list[Comparison]) -> Table:
    table = find_table(name)
    rich = Table(
        title=escape(f"Table {table.number} ({table.label}): {table.title}"),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for i, heading in enumerate(HEADINGS):
        rich.add_column(heading, justify="right" if i > 3 else "left")
    for line in _lines(rows):
        rich.add_row(*map(escape, line))
    rich.caption = "\n".join(table.notes) or None
    return rich


def markdown(name: str, rows: list[Comparison]) -> str:
    table = find_table(name)
    lines = [f"Table {table.number} ({table.label}): {table.title}", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(map(bars, line))} |" for line in _lines(rows)]
    lines += ["", *[f"- {note}" for note in table.notes]]
    return "\n".join(lines) + "\n"


def as_json(name: str, rows: list[Comparison]) -> dict[str, Any]:
    table = find_table(name)
    return {
        "number": table.number,
        "label": table.label,
        "notes": list(table.notes),
        "cells": [asdict(r) for r in rows],
    }
