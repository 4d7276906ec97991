"""Results as the page shows them: per experiment and selection rule a table, what it says in words, and curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from domainwise.core.phrasing import counted
from domainwise.paper.tables import PaperTable, Published
from domainwise.protocol.dataset_names import title, titles
from domainwise.protocol.selection import RULES, Choice, method
from domainwise.protocol.statistics import Choices, Difference, Estimate, accuracies, choices
from domainwise.report.learning_curves import courses
from domainwise.report.page.drawing import Bar, Panel, Scale, panels
from domainwise.report.palette import slots
from domainwise.report.paper_comparison import printed, printed_beside
from domainwise.sweep.collection import Collection
from domainwise.sweep.tables import AccuracyTable, Group, Row, groups, table_of

AVERAGE = "average"
Beside = Mapping[tuple[str, str], tuple[Published, PaperTable]]


@dataclass(frozen=True)
class Cell:
    """One accuracy: ours, the paper's, and both drawn."""

    estimate: Estimate | None
    best: bool
    bar: Bar | None
    paper: str


@dataclass(frozen=True)
class Verdict:
    """A paired difference to the baseline, in words and drawn around zero."""

    difference: Difference
    bar: Bar
    zero: float

    @property
    def words(self) -> str:
        return {"clearly ahead of": "clearly ahead", "clearly behind": "clearly behind"}.get(
            self.difference.verdict, "not clear"
        )


@dataclass(frozen=True)
class Line:
    """A row: one cell per column and the average last."""

    row: Row
    cells: tuple[Cell, ...]
    verdict: Verdict | None


@dataclass(frozen=True)
class View:
    """What one selection rule makes of an experiment."""

    table: AccuracyTable
    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    chosen: tuple[tuple[str, str, int, Choice], ...]
    """(method, column, trial, choice)."""
    paper: str
    """Which of the paper's tables stand beside ours."""

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """(verdict, what it means)."""
        rows = [line for line in self.lines if line.verdict is not None]
        return [(line.verdict.words, self.table.sentence(line.row.method)) for line in rows if line.verdict]


@dataclass(frozen=True)
class Section:
    """One experiment under every rule that can judge it."""

    title: str
    facts: str
    views: dict[str, View]
    group: Group


@dataclass(frozen=True)
class Whole:
    """A run that leaves no domain out: nothing is unseen, and only the held-out parts of its domains judge it."""

    name: str
    step: int
    accuracies: dict[str, float]


def wholes(collection: Collection) -> list[Whole]:
    """After the last evaluation of each such run, in per cent."""
    found = []
    for curve in collection.curves:
        if not curve.run.test_domains:
            own = {d: 100 * float(curve.accuracy[d, split][-1]) for d, split in curve.accuracy if split == "out"}
            name = f"{method(curve.run)} on {title(curve.run.dataset)}, trial {curve.run.trial}"
            found.append(Whole(name, curve.steps[-1], own))
    return found


def sections(collection: Collection, baseline: str = "ERM") -> list[Section]:
    """One per table of the folder."""
    result = []
    together = groups(collection)
    names = titles(group.experiment.dataset for group in together)
    for group in together:
        found = {rule: choices(group.curves, rule) for rule in RULES}
        name = names[group.experiment.dataset]
        views = {rule: _view(group, name, own, rule, baseline) for rule, own in found.items() if own}
        if views:
            facts = _facts(group, next(iter(views.values())).table)
            result.append(Section(name, facts, views, group))
    return result


def _facts(group: Group, table: AccuracyTable) -> str:
    """What tells an experiment from its neighbours."""
    own = group.experiment
    parts = ["leave one domain out" if own.setting == "multi" else "train on one domain", *table.made_with()]
    parts += [f"without {', '.join(own.unused)}"] if own.unused else []
    parts += [f"seed {own.seed}"] if own.seed else []
    return " · ".join([*parts, counted(len(group.curves), "run")])


def _view(group: Group, name: str, found: Choices, rule: str, baseline: str) -> View:
    table = replace(table_of(group, accuracies(found), rule, baseline), called=name)
    order = [row.method for row in table.rows]
    found = {method: found[method] for method in order}
    beside = printed_beside(table)
    chosen = tuple(
        (method, column, trial, found[method][column][trial])
        for method in order
        for column in table.columns
        for trial in sorted(found[method].get(column, ()))
    )
    drawn = panels(courses(group.curves, found, table.columns))
    return View(table, _lines(table, beside), tuple(drawn), chosen, _sources(beside))


def _sources(beside: Beside) -> str:
    names = dict.fromkeys(f"Table {paper.number}" if paper.number else paper.title for _, paper in beside.values())
    return ", ".join(names)


def _lines(table: AccuracyTable, beside: Beside) -> tuple[Line, ...]:
    columns = [_column(table, column, beside) for column in (*table.columns, AVERAGE)]
    verdicts = _verdicts([row.difference for row in table.rows])
    cells = zip(*columns, strict=True)
    return tuple(Line(row, own, v) for row, own, v in zip(table.rows, cells, verdicts, strict=True))


def _column(table: AccuracyTable, column: str, beside: Beside) -> list[Cell]:
    """A column's cells, drawn on one scale."""
    own = [row.average if column == AVERAGE else row.cells.get(column) for row in table.rows]
    paper = [beside[row.method, column][0] if (row.method, column) in beside else None for row in table.rows]
    ends = [e.mean + sign * e.error for e in own if e is not None for sign in (-1, 1)]
    ends += [p.mean for p in paper if p is not None]
    top = max((e.mean for e in own if e is not None), default=None)
    cells = []
    for estimate, print_ in zip(own, paper, strict=True):
        words = "" if print_ is None else printed(print_.mean, print_.error)
        if estimate is None:
            cells.append(Cell(None, False, None, words))
        else:
            mark = None if print_ is None else print_.mean
            bar = Bar.of(Scale.around(ends), estimate.mean, estimate.error, mark)
            cells.append(Cell(estimate, len(own) > 1 and estimate.mean == top, bar, words))
    return cells


def _verdicts(differences: Sequence[Difference | None]) -> list[Verdict | None]:
    ends = [d.mean + sign * (d.error or 0) for d in differences if d is not None for sign in (-1, 1)]
    scale = Scale.around([0.0, *ends])
    return [None if d is None else Verdict(d, Bar.of(scale, d.mean, d.error), scale(0.0)) for d in differences]


def colours(shown: Sequence[Section]) -> dict[str, tuple[int, int]]:
    """{method: (colour, dash)}, the same throughout a page."""
    return slots(row.method for section in shown for view in section.views.values() for row in view.table.rows)
