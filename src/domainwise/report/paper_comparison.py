"""The paper's numbers beside ours, cell by cell, with how much was searched; what was not run is marked."""

import csv
import io
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from domainwise.data.catalogue import DATASETS
from domainwise.paper import presets
from domainwise.paper.conditions import Conditions, differences
from domainwise.paper.presets import Cell
from domainwise.paper.tables import OVER_DATASETS, TABLES, PaperTable, Published, find_table
from domainwise.protocol.statistics import ARROW
from domainwise.report.formats import bars, booktabs, tex, tex_number
from domainwise.sweep.collection import Collection
from domainwise.sweep.domainbed import NETWORK as DOMAINBED
from domainwise.sweep.tables import AccuracyTable, Row, tables


@dataclass(frozen=True)
class Comparison:
    """One printed accuracy and ours, if there is one."""

    paper: Published
    mean: float | None = None
    error: float | None = None
    ours: Conditions | None = None

    @property
    def place(self) -> str:
        source = f"{self.paper.train}{ARROW}" if self.paper.train else ""
        return f"{source}{self.paper.domain}"

    @property
    def method(self) -> str:
        return f"{self.paper.algorithm} ({self.paper.variant})" if self.paper.variant else self.paper.algorithm

    @property
    def effort(self) -> str:
        return f"{self.ours.draws} x {self.ours.trials} x {self.ours.steps}" if self.ours is not None else ""


def compare(name: str, collection: Collection) -> list[Comparison]:
    """Every cell of a table of the paper, with ours by the same selection rule."""
    published = find_table(name).published
    ours = {rule: tables(collection, _rule(rule)) for rule in {cell.selection for cell in published}}
    rows = [_match(cell, ours[cell.selection]) for cell in published]
    return [_over_datasets(row, rows) if row.paper.dataset == OVER_DATASETS else row for row in rows]


def _over_datasets(row: Comparison, rows: list[Comparison]) -> Comparison:
    """The average over a table's datasets, if all were run; as much was searched for it as for the least of them."""
    parts = [r for r in rows if r.method == row.method and r.paper.dataset != OVER_DATASETS]
    means = [part.mean for part in parts if part.mean is not None]
    efforts = [part.ours for part in parts if part.ours is not None]
    if len(means) < len(parts):
        return row
    least = Conditions(*(min(getattr(effort, name) for effort in efforts) for name in ("draws", "trials", "steps")))
    return replace(row, mean=sum(means) / len(means), ours=least)


def _rule(selection: str) -> str:
    """Where the paper reports the last model of a single run, any rule that needs no choice will do."""
    return "oracle" if selection == "last" else selection


def _match(cell: Published, ours: list[AccuracyTable]) -> Comparison:
    for table in sorted(ours, key=lambda table: -max(row.steps for row in table.rows)):
        if (table.dataset, table.setting) != (cell.dataset, cell.setting):
            continue
        for name in _names(cell):
            for row in table.rows:
                value = _value(row, table, cell) if row.method == name else None
                if value is not None:
                    return Comparison(cell, *value, _conditions(row, table))
    return Comparison(cell)


def printed_beside(table: AccuracyTable) -> dict[tuple[str, str], tuple[Published, PaperTable]]:
    """{(method, column or "average"): what the paper prints for it under the same rule, and where}.

    Of several tables the one with our network comes first, then the one that gives every domain.
    """
    found: dict[tuple[str, str], tuple[Published, PaperTable]] = {}
    for paper in sorted(TABLES, key=lambda paper: _distance(paper, table)):
        for cell in paper.published:
            if (cell.dataset, cell.setting, _rule(cell.selection)) != (table.dataset, table.setting, table.selection):
                continue
            for row in table.rows:
                column = _column(cell)
                if row.method in _names(cell) and column in (*row.cells, "average"):
                    found.setdefault((row.method, column), (cell, paper))
    return found


def _distance(paper: PaperTable, table: AccuracyTable) -> tuple[bool, bool]:
    own = [cell for cell in paper.published if cell.dataset == table.dataset]
    if not own:
        return True, True
    network = presets.network(paper, Cell(table.dataset, own[0].algorithm, table.setting, ""))
    usual = DATASETS[table.dataset].network if table.dataset in DATASETS else None
    return (network or usual) != table.network, all(cell.domain == "average" for cell in own)


def _column(cell: Published) -> str:
    """Where a printed number belongs in a table of ours."""
    if cell.train is not None:
        return f"{cell.train}{ARROW}{cell.domain}"
    return "average" if cell.setting == "single" else cell.domain


def _names(cell: Published) -> list[str]:
    """What our row for a printed one may be called, best first."""
    variants = [cell.variant] if cell.variant else ["paper", ""]
    return [f"{cell.algorithm} ({variant})" if variant else cell.algorithm for variant in variants]


def _conditions(row: Row, table: AccuracyTable) -> Conditions:
    if table.network == DOMAINBED:  # its records do not name it
        return Conditions(row.draws, row.trials, row.steps)
    made_with = (table.network, table.weights, table.precision, table.augmentation, table.image_size)
    return Conditions(row.draws, row.trials, row.steps, *made_with)


def unlike(name: str, rows: list[Comparison]) -> list[str]:
    """Where ours differ from the paper's, in words."""
    cells = ((Cell(r.paper.dataset, r.paper.algorithm, r.paper.setting, r.paper.variant), r.ours) for r in rows)
    return differences(find_table(name), ((c, own) for c, own in cells if own and c.dataset != OVER_DATASETS))


def _notes(name: str, rows: list[Comparison]) -> list[str]:
    found = unlike(name, rows)
    return [*find_table(name).notes, *([f"Ours, unlike the paper: {'; '.join(found)}."] if found else [])]


def _value(row: Row, table: AccuracyTable, cell: Published) -> tuple[float, float | None] | None:
    """Our mean and standard error for a cell; an average over one training domain's targets has no error, as there."""
    if cell.domain == "average" and cell.train is not None:
        own = [row.cells.get(column) for column in _from(cell.train, table)]
        known = [value.mean for value in own if value is not None]
        return (sum(known) / len(known), None) if known and len(known) == len(own) else None
    column = _column(cell)
    value = row.cells.get(column) if column != "average" else row.average if _is_whole(table) else None
    return (value.mean, value.error if value.n > 1 else None) if value is not None else None


def _from(train: str, table: AccuracyTable) -> list[str]:
    """The columns of everything that a model trained on one domain is tested on."""
    if table.dataset not in DATASETS:
        return [column for column in table.columns if column.startswith(f"{train}{ARROW}")]
    return [f"{train}{ARROW}{domain}" for domain in DATASETS[table.dataset].testable if domain != train]


def _is_whole(table: AccuracyTable) -> bool:
    """Whether an average over a table's columns is one over all that the dataset has."""
    if table.dataset not in DATASETS:
        return True
    data = DATASETS[table.dataset]
    sources = [domain for domain in data.domains if domain not in (*data.validation, *data.unseen)]
    single = {f"{source}{ARROW}{domain}" for source in sources for domain in data.testable if domain != source}
    return (set(data.testable) if table.setting == "multi" else single) <= set(table.columns)


def printed(mean: float | None, error: float | None) -> str:
    if mean is None:
        return "not run"
    return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"


def _lines(rows: list[Comparison]) -> list[list[str]]:
    lines = []
    for row in rows:
        paper, ours = printed(row.paper.mean, row.paper.error), printed(row.mean, row.error)
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
    rich.caption = escape("\n".join(_notes(name, rows))) or None
    return rich


def markdown(name: str, rows: list[Comparison]) -> str:
    table = find_table(name)
    lines = [f"Table {table.number} ({table.label}): {table.title}", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(map(bars, line))} |" for line in _lines(rows)]
    lines += ["", *[f"- {note}" for note in _notes(name, rows)]]
    return "\n".join(lines) + "\n"


def latex(name: str, rows: list[Comparison]) -> str:
    """For the packages booktabs and amsmath."""
    table = find_table(name)
    lines = [[*map(tex, line[:4]), *map(tex_number, line[4:7]), tex(line[7])] for line in _lines(rows)]
    return booktabs(HEADINGS, lines, 4, [f"Table {table.number} ({table.label}): {table.title}", *_notes(name, rows)])


def comma_separated(rows: list[Comparison]) -> str:
    """One line per cell of the paper; ours are empty where they were not run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ("paper mean", "paper error", "our mean", "our error", "draws", "trials", "steps")
    writer.writerow(["dataset", "setting", "method", "domain", "selection", *names])
    for row in rows:
        cell, ours = row.paper, row.ours
        effort = (ours.draws, ours.trials, ours.steps) if ours is not None else (None, None, None)
        where = (cell.dataset, cell.setting, row.method, row.place, cell.selection)
        writer.writerow([*where, cell.mean, cell.error, row.mean, row.error, *effort])
    return out.getvalue()


def as_json(name: str, rows: list[Comparison]) -> dict[str, Any]:
    table = find_table(name)
    return {
        "number": table.number,
        "label": table.label,
        "notes": list(table.notes),
        "differences": unlike(name, rows),
        "cells": [asdict(r) for r in rows],
    }
