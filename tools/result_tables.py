"""Tables of accuracies for the pages: rows of one experiment, one method in several experiments, a leaderboard."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from domainwise.core.errors import unknown
from domainwise.core.phrasing import counted
from domainwise.core.table import NOT_RUN, Bold, Table
from domainwise.protocol.selection import Method
from domainwise.protocol.statistics import Difference, Estimate, averages_by_draws
from domainwise.sweeps.accuracy_table import AccuracyTable, Row
from domainwise.sweeps.leaderboard import LeaderboardEntry, Provenance, plain
from published_results import Library, Results

COMPARED = "average,difference,pairs,p,verdict"
COSTS = Path(__file__).parents[1] / "results" / "bench" / "method-costs.json"
UNMEASURED = "not measured"
TRAINING_DOMAIN, ORACLE = "training-domain", "oracle"


def made(results: Results, draws: str = "") -> str:
    """Where and when the runs of an experiment were made."""
    runs = tuple(run for run in results.collection.runs if not draws or run.draw < int(draws))
    return str(Provenance.of(replace(results.collection, runs=runs)))


def table(results: Results, rule: str, **conditions: str) -> str:
    """All methods and unseen domains by one selection rule."""
    full = results.of_rule(rule, **conditions)
    shown = replace(full, rows=tuple(replace(row, method=plain(row.method)) for row in full.rows)).as_table()
    return f"{shown.markdown_rows()}\n\n{shown.caption}. {made(results, conditions.get('draws', ''))}."


def compare(results: Results, rule: str, *names: str, columns: str = COMPARED, **conditions: str) -> str:
    """Chosen methods of one experiment (all, if none is named), and chosen facts about each.

    Columns are unseen domains, or names of FACTS; `columns=` has them with commas.
    """
    full = results.of_rule(rule, **conditions)
    found = {str(plain(row.method)): row for row in full.rows}
    chosen = names or tuple(found)
    wanted = columns.split(",")
    rows = [
        [name, *(_fact(results, full, found[name], column) if name in found else NOT_RUN for column in wanted)]
        for name in chosen
    ]
    headings = ["method", *(_heading(column, full.baseline) for column in wanted)]
    return Table(headings, rows).markdown_rows()


@dataclass(frozen=True)
class Asked:
    """What a page asks of an experiment, "cmnist rule=oracle until=5000": a method, a rule and further conditions."""

    folder: str
    name: str
    rule: str
    label: str
    conditions: Mapping[str, str]

    @classmethod
    def parse(cls, words: str, name: str = "") -> "Asked":
        folder, *facts = shlex.split(words)
        conditions = dict(fact.split("=", 1) for fact in facts)
        rule, label = conditions.pop("rule", TRAINING_DOMAIN), conditions.pop("label", "")
        return cls(folder, conditions.pop("name", name), rule, label, conditions)

    def table(self, library: Library, against: str = "ERM") -> AccuracyTable:
        return library(self.folder).of_rule(self.rule, **{"against": against, **self.conditions})

    def row(self, table: AccuracyTable) -> Row | None:
        return next((row for row in table.rows if str(plain(row.method)) == self.name), None)

    def difference(self, library: Library) -> Difference | None:
        """To ERM; None where it was not run."""
        row = self.row(self.table(library)) if library(self.folder).there else None
        return None if row is None else row.difference

    def title(self, table: AccuracyTable) -> str:
        return ", ".join(part for part in (table.dataset, self.label) if part)


def across(library: Library, name: str, *experiments: str, against: str = "ERM", columns: str = COMPARED) -> str:
    """One method minus another in several experiments, each with its own conditions: "cmnist rule=oracle until=5000".

    Further conditions of an experiment: `draws=`, `label=` after the dataset's name, and `name=` and `against=`, where
    its rows have other names.
    """
    wanted = columns.split(",")
    rows = []
    for asked in (Asked.parse(words, name) for words in experiments):
        results = library(asked.folder)
        if not results.there:
            rows.append([asked.folder, *[NOT_RUN] * len(wanted)])
            continue
        full = asked.table(library, against)
        row = asked.row(full)
        cells = [NOT_RUN if row is None else _fact(results, full, row, column) for column in wanted]
        rows.append([asked.title(full), *cells])
    headings = ["dataset", *(_heading(column, against, name) for column in wanted)]
    return Table(headings, rows).markdown_rows()


def summary(library: Library, *experiments: str) -> str:
    """The methods clearly ahead of ERM, not clearly different from it and clearly behind; a row per experiment."""
    rows = []
    for asked in map(Asked.parse, experiments):
        full = asked.table(library)
        gaps = {str(plain(row.method)): row.difference for row in full.rows if row.difference is not None}
        by_verdict: dict[str, list[str]] = {"clearly ahead": [], "not clear": [], "clearly behind": []}
        for name in sorted(gaps, key=lambda name: -gaps[name].mean):
            by_verdict[verdict(gaps[name])].append(name)
        rows.append([asked.title(full), *(", ".join(names) or "none" for names in by_verdict.values())])
    headings = ("dataset", "clearly ahead of ERM", "not clearly different", "clearly behind ERM")
    return Table(headings, rows).markdown_rows()


def over(results: Results, rule: str, *names: str, against: str = "ERM", **conditions: str) -> str:
    """Methods minus a baseline, a column for every value of `until=300,600` or `draws=1,2,4`."""
    ((condition, values),) = conditions.items()
    title = {"until": "step {}", "draws": "{} draws"}[condition]
    rows = []
    for name in names:
        found = [results.row(name, rule, against=against, **{condition: value}) for value in values.split(",")]
        cells = [NOT_RUN if row is None or row.difference is None else marked(row.difference) for row in found]
        rows.append([f"{name} − {against}", *cells])
    return Table(["", *(title.format(value) for value in values.split(","))], rows).markdown_rows()


def by_draws(results: Results, *names: str, draws: str = "1,2,4,8") -> str:
    """The expected average of a search of so many draws, by both selection rules."""
    rows = []
    for rule in (TRAINING_DOMAIN, ORACLE):
        averages = averages_by_draws(results.collection.curves, results.of_rule(rule).columns, rule)
        by_name = {str(plain(method)): values for method, values in averages.items()}
        for name in names:
            values = by_name.get(name, [])
            rows.append([rule, name, *(_nth(values, int(count)) for count in draws.split(","))])
    headings = ["selection", "method", *(counted(int(count), "draw") for count in draws.split(","))]
    return Table(headings, rows).markdown_rows()


def _nth(values: Sequence[Estimate], count: int) -> str:
    return str(values[count - 1]) if 0 < count <= len(values) else NOT_RUN


def leaderboard(results: Results) -> str:
    """Every method of an experiment, best first, by training-domain validation and with oracle selection."""
    board = results.leaderboard
    rules = [rule for rule in (TRAINING_DOMAIN, ORACLE) if rule in board.tables]
    first = board.tables[rules[0]]
    ranked = board.ranked(rules[0])
    rows = []
    for entry in ranked:
        scores = [cell for rule in rules for cell in _scores(entry.rows[rule])]
        rows.append([entry.name, *scores, entry.effort, cost(first, entry.rows[rules[0]]), entry.time])
    scored = [text for rule in rules for text in (rule, f"minus {first.baseline}")]
    titles = ["method", *scored, FACTS["effort"][0], FACTS["cost"][0], "seconds of a run"]
    if all(row[-2] == UNMEASURED for row in rows):
        titles, rows = [*titles[:-2], titles[-1]], [[*row[:-2], row[-1]] for row in rows]
    text = Table(titles, rows).markdown_rows()
    facts = "; ".join([*first.made_with(), *([] if first.chance is None else [f"chance {first.chance:.1f}"])])
    best = next((entry for entry in ranked if entry.method.algorithm != first.baseline), ranked[0])
    return f"{text}\n\n{facts}. {made(results)}. {records(results.folder.name, best.method.algorithm, ranked)}"


def records(name: str, algorithm: str, entries: Sequence[LeaderboardEntry]) -> str:
    """Where the records of a leaderboard are, and how it, or the rows of an algorithm, are repeated from nothing.

    Where these have several numbers of draws, the numbers are left to the experiment.
    """
    rows = [next(iter(entry.rows.values())) for entry in entries if entry.method.algorithm == algorithm]
    draws = f"--hparams {rows[0].draws} " if len({row.draws for row in rows}) == 1 else ""
    again = f"make reproduce-{name} AGAIN=1"
    one = f"{again} ONLY={algorithm} OPTIONS='{draws}--trials {rows[0].trials}'"
    link = f"Records: [`results/{name}`](../results/{name}/runs.jsonl.gz)"
    return f"{link}. Repeat all: `{again}`; {algorithm} alone: `{one}`."


def _scores(row: Row) -> tuple[str, str]:
    return str(row.average or NOT_RUN), "" if row.difference is None else marked(row.difference)


def marked(difference: Difference) -> str:
    """A difference with its error; in bold if it is clear."""
    return Bold(difference) if difference.clear else str(difference)


def verdict(difference: Difference) -> str:
    """The verdict of the test without the name of the baseline."""
    return difference.verdict.removesuffix(" of") if difference.clear else "not clear"


def cost(board: AccuracyTable, row: Row) -> str:
    """A run's time as a multiple of ERM's: the measured ratio of their steps' times, times that of their numbers."""
    ratio = step_cost(board, row.method)
    baseline = _baseline(board, row)
    if ratio is None or baseline is None or not baseline.steps:
        return UNMEASURED
    times = (1.0 if row is baseline else ratio) * row.steps / baseline.steps
    return f"{times:.{0 if times >= 10 else 1}f} x"


def step_cost(board: AccuracyTable, method: Method) -> float | None:
    """The time of a method's step, ERM's being 1, with the measured network nearest to the experiment's."""
    cases: list[Mapping[str, Any]] = json.loads(COSTS.read_text())["cases"]
    measured = [case for case in cases if case["network"] == board.network.removesuffix("-v1")]
    if not measured:
        return None
    nearest = min(measured, key=lambda case: abs(case["size"] - board.image_size))
    ratio: float | None = nearest["times_erm"].get(method.algorithm)
    return ratio


def _effort(row: Row) -> str:
    return f"{row.draws} x {row.trials} x {row.steps}"


def _baseline(board: AccuracyTable, row: Row) -> Row | None:
    """The row that a row is compared with: the baseline in the same variant, or without one."""
    by_name = {str(one.method): one for one in board.rows}
    return by_name.get(str(Method(board.baseline, row.method.variant)), by_name.get(board.baseline))


def _of_difference(say: Callable[[Difference], str]) -> Callable[[AccuracyTable, Row], str]:
    return lambda _, row: "" if row.difference is None else say(row.difference)


def _baseline_average(board: AccuracyTable, row: Row) -> str:
    other = _baseline(board, row)
    return NOT_RUN if other is None or other.average is None else str(other.average)


FACTS: Mapping[str, tuple[str, Callable[[AccuracyTable, Row], str]]] = {
    "average": ("{name}", lambda _, row: NOT_RUN if row.average is None else str(row.average)),
    "baseline": ("{against}", _baseline_average),
    "difference": ("minus {against}", _of_difference(str)),
    "pairs": ("pairs", _of_difference(lambda gap: str(gap.n))),
    "p": ("p", _of_difference(lambda gap: f"{gap.p:.2g}" if gap.p >= 1e-4 else "< 0.0001")),
    "verdict": ("verdict", _of_difference(verdict)),
    "effort": ("draws x trials x steps", lambda _, row: _effort(row)),
    "cost": ("time of a run", cost),
}
"""What a column of `compare` and `across` can show of a row: its heading, and the text of a cell."""


def _heading(column: str, against: str, name: str = "average") -> str:
    return FACTS[column][0].format(against=against, name=name) if column in FACTS else column


def _fact(results: Results, board: AccuracyTable, row: Row, column: str) -> str:
    if column in FACTS:
        return FACTS[column][1](board, row)
    by_name = {str(one): one for one in board.columns}
    if column not in by_name:
        raise unknown(f"column of {results.folder.name}", column, [*by_name, *FACTS])
    value = row.estimate(by_name[column])
    return NOT_RUN if value is None else str(value)
