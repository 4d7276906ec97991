"""Results as the page shows them: per experiment and selection rule a table, comparisons in words, and curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from domainwise.algorithms import ALGORITHMS
from domainwise.core.phrasing import counted, duration
from domainwise.data.catalogue import DATASETS
from domainwise.paper.tables import PaperTable, Published
from domainwise.protocol.dataset_names import title, titles
from domainwise.protocol.metrics import ACCURACY, Metric
from domainwise.protocol.selection import RULES, Column, Method, Selection
from domainwise.protocol.statistics import AVERAGE, Choices, Difference, Estimate, accuracies, choices
from domainwise.reports.learning_curves import learning_curves, on_unseen, training_loss
from domainwise.reports.page.drawing import AxisScale, Bar, Panel, panels
from domainwise.reports.paper_comparison import printed, printed_beside
from domainwise.reports.style import slots
from domainwise.sweeps.accuracy_table import AccuracyTable, Row
from domainwise.sweeps.collection import Collection, distinct
from domainwise.sweeps.completeness import Completeness
from domainwise.sweeps.tables import Group, groups, table_of

Beside = Mapping[tuple[Method, Column], tuple[Published, PaperTable]]


@dataclass(frozen=True)
class Cell:
    """One accuracy: ours, the paper's, and both drawn."""

    estimate: Estimate | None
    best: bool
    bar: Bar | None
    paper: str
    absent: str
    """Why there is no estimate."""


@dataclass(frozen=True)
class DifferenceVerdict:
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
class MethodLine:
    """A row: the average first, then one cell per column."""

    row: Row
    cells: tuple[Cell, ...]
    verdict: DifferenceVerdict | None


@dataclass(frozen=True)
class Time:
    """How long a method's runs took, in words."""

    method: Method
    runs: int
    per_run: str
    in_all: str


@dataclass(frozen=True)
class View:
    """An experiment under one selection rule."""

    table: AccuracyTable
    lines: tuple[MethodLine, ...]
    panels: tuple[Panel, ...]
    losses: tuple[Panel, ...]
    """The loss of the same runs while training, where it was recorded."""
    chosen: tuple[tuple[Method, Column, int, Selection], ...]
    """(method, column, trial, choice)."""
    paper: str
    """The tables of the paper beside ours."""

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """(verdict, the comparison in words)."""
        return [(line.verdict.words, self.table.sentence(line.row.method)) for line in self.lines if line.verdict]


@dataclass(frozen=True)
class Section:
    """One experiment under every rule whose evaluations it has."""

    title: str
    facts: str
    views: dict[str, View]
    group: Group
    times: tuple[Time, ...]
    about: str = ""
    """The dataset in a sentence, if it is a registered one."""
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """What each algorithm of its rows minimises, in a sentence."""


@dataclass(frozen=True)
class RunOnAllDomains:
    """A run that leaves no domain out: it is evaluated on the held-out parts of its domains only."""

    name: str
    step: int
    accuracies: dict[str, float]


def runs_on_all_domains(collection: Collection) -> list[RunOnAllDomains]:
    """Accuracies after the last evaluation of each such run, in per cent."""
    runs = []
    for curve in distinct(collection.curves):
        if not curve.run.test_domains:
            held_out = {d: 100 * float(v[-1]) for (d, split), v in curve.accuracy.items() if split == "out"}
            name = f"{curve.method} on {title(curve.run.dataset)}, trial {curve.run.trial}"
            runs.append(RunOnAllDomains(name, curve.steps[-1], held_out))
    return runs


def sections(collection: Collection, baseline: str = "ERM", metric: Metric = ACCURACY) -> list[Section]:
    """One per table of the folder; the rules select by the metric."""
    result = []
    together = groups(collection)
    names = titles(group.experiment.dataset for group in together)
    for group in together:
        by_rule = {rule: choices(group.curves, rule, metric) for rule in RULES}
        name = names[group.experiment.dataset]
        views = {rule: _view(group, name, chosen, rule, baseline, metric) for rule, chosen in by_rule.items() if chosen}
        if views:
            table = next(iter(views.values())).table
            facts = facts_of(group, table, collection.completeness(group.incomplete))
            about = _about(group.experiment.dataset), _algorithms(table)
            result.append(Section(name, facts, views, group, _times(group, table), *about))
    return result


def _about(dataset: str) -> str:
    return DATASETS[dataset].summary if dataset in DATASETS else ""


def _algorithms(table: AccuracyTable) -> dict[str, str]:
    """Of DomainBed's output some may be unknown here."""
    names = dict.fromkeys(row.method.algorithm for row in table.rows)
    return {name: ALGORITHMS.summary(name) for name in names if name in ALGORITHMS}


def _times(group: Group, table: AccuracyTable) -> tuple[Time, ...]:
    """Of every method whose runs say how long they took."""
    times = []
    for row in table.rows:
        curves = [curve for curve in group.curves if curve.method == row.method and not curve.average]
        known = [curve.seconds for curve in curves if curve.seconds]
        if known:
            mean = sum(known) / len(known)
            per_run = duration(mean) if mean >= 10 else f"{mean:.1f} s"
            times.append(Time(row.method, len(known), per_run, duration(sum(known))))
    return tuple(times)


def facts_of(group: Group, table: AccuracyTable, complete: Completeness) -> str:
    """The settings that distinguish an experiment from others."""
    experiment = group.experiment
    setting = "leave one domain out" if experiment.setting == "multi" else "train on one domain"
    parts = [setting, *table.made_with()]
    parts += [f"without {', '.join(experiment.unused)}"] if experiment.unused else []
    parts += [f"seed {experiment.seed}"] if experiment.seed else []
    runs = len({curve.run.id for curve in group.curves})
    return " · ".join([*parts, counted(runs, "run"), *complete.sentences])


def _view(group: Group, name: str, chosen: Choices, rule: str, baseline: str, metric: Metric) -> View:
    table = replace(table_of(group, accuracies(chosen, metric), rule, baseline, metric), called=name)
    chosen = {row.method: chosen[row.method] for row in table.rows if row.method in chosen}
    beside = printed_beside(table) if metric == ACCURACY else {}
    flat = tuple(
        (method, column, trial, by_column[column][trial])
        for method, by_column in chosen.items()
        for column in table.columns
        for trial in sorted(by_column.get(column, ()))
    )
    learned = learning_curves(group.curves, chosen, table.columns, on_unseen(metric))
    drawn = panels(learned, table.chance, *((1, " %") if metric.percent else (3, "")))
    losses = panels(learning_curves(group.curves, chosen, table.columns, training_loss), digits=3, unit="")
    return View(table, method_lines(table, beside), tuple(drawn), tuple(losses), flat, sources(beside))


def sources(beside: Beside) -> str:
    names = dict.fromkeys(f"Table {paper.number}" if paper.number else paper.title for _, paper in beside.values())
    return ", ".join(names)


def method_lines(table: AccuracyTable, beside: Beside) -> tuple[MethodLine, ...]:
    columns = [_column(table, column, beside) for column in (AVERAGE, *table.columns)]
    verdicts = _verdicts([row.difference for row in table.rows])
    cells = zip(*columns, strict=True)
    return tuple(MethodLine(row, c, verdict) for row, c, verdict in zip(table.rows, cells, verdicts, strict=True))


def _column(table: AccuracyTable, column: Column, beside: Beside) -> list[Cell]:
    """A column's cells, drawn on one scale."""
    ours = [row.estimate(column) for row in table.rows]
    paper = [beside[row.method, column][0] if (row.method, column) in beside else None for row in table.rows]
    ends = [e.mean + sign * e.bar for e in ours if e is not None for sign in (-1, 1)]
    ends += [p.mean for p in paper if p is not None]
    top = table.metric.best(e.mean for e in ours if e is not None)
    cells = []
    for row, estimate, print_ in zip(table.rows, ours, paper, strict=True):
        words = "" if print_ is None else printed(print_.mean, print_.error)
        if estimate is None:
            cells.append(Cell(None, False, None, words, row.absent(column)))
        else:
            mark = None if print_ is None else print_.mean
            bar = Bar.of(AxisScale.around(ends), estimate.mean, estimate.error, mark)
            cells.append(Cell(estimate, len(ours) > 1 and estimate.mean == top, bar, words, ""))
    return cells


def _verdicts(differences: Sequence[Difference | None]) -> list[DifferenceVerdict | None]:
    ends = [d.mean + sign * (d.error or 0) for d in differences if d is not None for sign in (-1, 1)]
    scale = AxisScale.around([0.0, *ends])
    return [
        None if d is None else DifferenceVerdict(d, Bar.of(scale, d.mean, d.error), scale(0.0)) for d in differences
    ]


def colours(shown: Sequence[Section]) -> dict[Method, tuple[int, int]]:
    """{method: (colour, dash)}, the same throughout a page."""
    return slots(row.method for section in shown for view in section.views.values() for row in view.table.rows)
