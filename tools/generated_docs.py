"""Numbers and tables of pages, written from published records: `python tools/generated_docs.py docs/*.md`.

A page marks a place for them as `<!-- results: WORDS -->...<!-- /results -->`, in a line or around a block of its own;
the text between is replaced by the answer to the words from the folder `results`, or by "not run".
"""

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import comb
from pathlib import Path

from domainwise.analysis.shortcuts import ColourUse
from domainwise.core import files
from domainwise.core.errors import unknown
from domainwise.core.phrasing import counted
from domainwise.core.table import NOT_RUN, Table
from domainwise.protocol.records import PenaltyRecord
from domainwise.protocol.selection import Method, Selection, select
from domainwise.protocol.statistics import AVERAGE, Estimate, averages_by_draws, estimate, selected
from domainwise.reports import paper_comparison
from domainwise.reports.figures import TooFew, draw
from domainwise.reports.paper_comparison import ComparedCell, printed
from domainwise.reports.publish import origins
from domainwise.sweeps.collection import read_penalties
from domainwise.sweeps.tables import groups, table_of
from published_results import PAPER, Results, plain

PLACE = re.compile(r"<!-- results: (?P<words>.*?) -->(?P<old>.*?)<!-- /results -->", re.DOTALL)
CONDITION = re.compile("(until|against|draws)=")
AS_THE_PAPER = 2
"""Standard errors of a difference within which ours and the paper's number are said to agree."""
UNCERTAIN = 5.0
"""Points; where that many lie within these standard errors, nothing is said to agree."""


def made(results: Results, draws: str = "") -> str:
    """On which device, by which commit and when."""
    runs = [run for run in results.collection.runs if not draws or run.draw < int(draws)]
    statuses = results.collection.statuses
    return "; ".join(line.strip() for line in origins(statuses[run.id] for run in runs if run.id in statuses))


def table(results: Results, rule: str, **conditions: str) -> str:
    """The table by one rule."""
    full = results.of_rule(rule, **conditions)
    shown = replace(full, rows=tuple(replace(row, method=plain(row.method)) for row in full.rows)).as_table()
    origin = made(results, conditions.get("draws", ""))
    caption = ". ".join(text for text in (shown.caption, origin) if text)
    return f"{shown.markdown_rows()}\n\n{caption}."


def mean(results: Results, name: str, column: str, rule: str, **conditions: str) -> str:
    """One cell, or the average over the unseen domains."""
    row = results.row(name, rule, **conditions)
    known = {str(one): one for one in (*row.cells, AVERAGE)} if row is not None else {}
    value = row.estimate(known[column]) if row is not None and column in known else None
    return NOT_RUN if value is None else str(value)


def minus(results: Results, name: str, rule: str, **conditions: str) -> str:
    """How far a method is from ERM or another, in points."""
    row = results.row(name, rule, **conditions)
    return NOT_RUN if row is None or row.difference is None else str(row.difference)


def gap(results: Results, name: str, rule: str, **conditions: str) -> str:
    """How far a method is from ERM or another, over how many pairs of runs, and whether that is clear."""
    row = results.row(name, rule, **conditions)
    return NOT_RUN if row is None or row.difference is None else row.difference.judged


def searched(results: Results, name: str, rule: str, draws: str) -> str:
    """The average that a method is expected to reach with so many of its draws."""
    averages = averages_by_draws(results.collection.curves, results.of_rule(rule).columns, rule)
    by_draws = next((values for method, values in averages.items() if str(plain(method)) == name), [])
    return str(by_draws[int(draws) - 1]) if 0 < int(draws) <= len(by_draws) else NOT_RUN


def at_home(results: Results, name: str, unseen: str, split: str, until: str = "") -> str:
    """Accuracy where a method trained, mean over its domains, after the last step: `in` or `out` of its images."""
    curves = [curve.until(int(until)) if until else curve for curve in results.curves(name, unseen)]
    accuracies = [curve.mean(curve.run.train_domains, split) for curve in curves]
    known = [100 * float(values[-1]) for values in accuracies if values is not None]
    return str(estimate(known)) if known else NOT_RUN


def effort(results: Results, name: str) -> str:
    """How much was searched for a method."""
    row = results.row(name, "oracle")
    if row is None:
        return NOT_RUN
    return f"{counted(row.draws, 'draw')} x {counted(row.trials, 'trial')} x {counted(row.steps, 'step')}"


def paper(results: Results, name: str) -> str:
    """A table of the paper beside ours, cell by cell, with a verdict; its rows that were not run are named."""
    datasets = {run.dataset for run in results.collection.runs}
    compared = paper_comparison.compare(name, results.collection)
    cells = [cell for cell in compared.cells if cell.paper.dataset in datasets]
    rows = []
    for cell in cells:
        if cell.mean is not None:
            numbers = printed(cell.paper.mean, cell.paper.error), printed(cell.mean, cell.error)
            labels = str(cell.method), str(cell.column), cell.paper.selection
            rows.append([*labels, *numbers, verdict(cell), cell.effort])
    headings = ("algorithm", "unseen", "selection", "paper", "ours", "verdict", "draws x trials x steps")
    notes = [
        paper_comparison.ERRORS,
        f"Unlike the paper: {'; '.join(replace(compared, cells=tuple(cells)).differences)}.",
    ]
    run = {cell.method for cell in cells if cell.mean is not None}
    missing = [
        str(cell.method) if cell.method not in run else f"{cell.method} on {cell.column}"
        for cell in cells
        if cell.mean is None
    ]
    notes += [f"Not run: {', '.join(dict.fromkeys(missing))}."] if missing else []
    return f"{Table(headings, rows).markdown_rows()}\n\n{' '.join(notes)}"


def verdict(cell: ComparedCell) -> str:
    """Whether a number of ours is the paper's, as far as both standard errors tell."""
    assert cell.mean is not None
    gap = cell.mean - cell.paper.mean
    if cell.error is None or cell.paper.error is None:
        return f"{gap:+.1f}, no error known"
    within = AS_THE_PAPER * (cell.error**2 + cell.paper.error**2) ** 0.5
    if abs(gap) <= within:
        return "agrees" if within < UNCERTAIN else f"open: {gap:+.1f} within ± {within:.0f}"
    return f"{'higher' if gap > 0 else 'lower'} by {abs(gap):.1f}"


def audit(results: Results, rule: str) -> str:
    """Per method and unseen domain: what the models that a rule chose follow, colour or digit."""
    rows: dict[tuple[Method, str], list[tuple[Selection, ColourUse, bool]]] = {}
    for run in results.runs:
        choices = results.chosen.get(run, {})
        if rule in choices and run in results.colour_uses:
            rows.setdefault((plain(Method.of(run)), run.test_domains[0]), []).append(
                (choices[rule], *results.colour_uses[run])
            )
    curves = {curve.run: curve for curve in results.collection.curves}
    headings = ("algorithm", "unseen", "accuracy per trial", "in the last quarter", "follows", "colour", "digit")
    lines = []
    for (method, unseen), audits in rows.items():
        late = [_last_quarter(curves[choice.run].accuracy[unseen, "in"].tolist()) for choice, _, _ in audits]
        accuracies = ", ".join(f"{100 * choice.accuracy:.1f}" for choice, _, _ in audits)
        follows = ", ".join("nothing" if constant else use.follows for _, use, constant in audits)
        shares = [", ".join(f"{100 * getattr(use, of):.0f} %" for _, use, _ in audits) for of in ("colour", "digit")]
        lines.append([str(method), unseen, accuracies, ", ".join(late), follows, *shares])
    return Table(headings, lines).markdown_rows() if rows else NOT_RUN


def _last_quarter(accuracies: Sequence[float]) -> str:
    """Between which accuracies a run moved over the last quarter of its evaluations."""
    late = [100 * value for value in accuracies[-max(1, len(accuracies) // 4) :]]
    return f"{min(late):.0f} to {max(late):.0f}"


def penalties(results: Results) -> str:
    """Every penalty at the end of training, mean over domains, mean ± standard error over runs."""
    last = _last_penalties(results)
    names = {"irm": "IRM's", "at": "linearised AT's", "dat": "linearised DAT's", "ldat": "LDAT's"}
    rows = [[name, *(_small([run[key] for run in runs.values()]) for key in names)] for name, runs in last.items()]
    return Table(("trained with", *names.values()), rows).markdown_rows()


def penalty(results: Results, which: str, name: str, other: str) -> str:
    """One method's penalty at the end beside another's, over the pairs of runs that share domain, draw and trial."""
    last = _last_penalties(results)
    if name not in last or other not in last:
        return NOT_RUN
    pairs = [(last[name][key][which], last[other][key][which]) for key in last[name] if key in last[other]]
    ours, theirs = (_small([pair[i] for pair in pairs]) for i in (0, 1))
    lower = sum(a < b for a, b in pairs)
    return f"{ours} after {name}, {theirs} after {other}, lower in {lower} of {len(pairs)} pairs of runs"


def _last_penalties(results: Results) -> dict[str, dict[tuple[str, int, int], dict[str, float]]]:
    """method -> (unseen domain, draw, trial) -> penalty -> mean over training domains, after the last step."""
    result: dict[str, dict[tuple[str, int, int], dict[str, float]]] = {}
    tracked = read_penalties(results.folder, results.runs)
    for run in (run for run in results.runs if run.id in tracked):
        rows = tracked[run.id]
        last: Sequence[PenaltyRecord] = [row for row in rows if row.step == rows[-1].step]
        means = {name: sum(getattr(row, name) for row in last) / len(last) for name in ("irm", "at", "dat", "ldat")}
        result.setdefault(str(Method.of(run)), {})[run.test_domains[0], run.draw, run.trial] = means
    return result


def _small(values: Sequence[float]) -> str:
    value: Estimate = estimate(values)
    return f"{value.mean:.2g}" if value.error is None else f"{value.mean:.2g} ± {value.error:.1g}"


def validation(results: Results, until: str = "") -> str:
    """By what settings are chosen: accuracy on held-out images of the training domains, and that on the unseen domain.

    Both at the step that training-domain validation selects, mean ± standard error over runs; with two digits, because
    a choice may depend on the second.
    """
    by_method: dict[str, list[tuple[float, float]]] = {}
    curves = {curve.run: curve.until(int(until)) if until else curve for curve in results.collection.curves}
    for run in results.runs:
        curve, unseen = curves[run], run.test_domains[0]
        choice, held_out = select([curve], unseen, "training-domain"), curve.mean(run.train_domains, "out")
        assert choice is not None and held_out is not None
        accuracies = float(held_out[curve.steps.index(choice.step)]), choice.accuracy
        by_method.setdefault(str(Method.of(run)), []).append(accuracies)
    rows = [
        [name, str(len(values)), *(_exact(estimate([100 * pair[i] for pair in values])) for i in (0, 1))]
        for name, values in by_method.items()
    ]
    return Table(("settings", "runs", "validation", "unseen domain"), rows).markdown_rows()


def _exact(value: Estimate) -> str:
    return f"{value.mean:.2f}" if value.error is None else f"{value.mean:.2f} ± {value.error:.2f}"


def robustness(results: Results, name: str, rule: str) -> str:
    """A method against ERM in every repetition of an experiment with another seed, precision or number of threads."""
    rows = []
    repetitions = {group.experiment: group for group in groups(results.collection.finished())}
    for settings in sorted(repetitions, key=lambda one: (one.precision != "fp32", one.seed, one.threads)):
        group = repetitions[settings]
        by_name = {str(row.method): row for row in table_of(group, selected(group.curves, rule), rule).rows}
        row, baseline = by_name[name], by_name["ERM"]
        gap = row.difference
        assert gap is not None
        tested = f"{gap.ahead} of {gap.n}", f"{_sign_test(gap.ahead, gap.behind):.2g}", f"{gap.p:.2g}"
        facts = str(settings.seed), settings.precision, str(settings.threads), str(baseline.average), str(row.average)
        rows.append([*facts, str(gap), *tested, "yes" if gap.clear else "no"])
    tests = ("pairs ahead", "p of the sign test", "p of the t-test", "clear")
    headings = ("seed", "precision", "threads", "ERM", name, f"{name} − ERM", *tests)
    return Table(headings, rows, labels=3).markdown_rows()


def _sign_test(ahead: int, behind: int) -> float:
    """The probability that so many pairs or more agree if neither method is better, two-sided; ties do not count."""
    n, most = ahead + behind, max(ahead, behind)
    return min(1.0, 2 * sum(comb(n, k) for k in range(most, n + 1)) / 2**n)


def figure(results: Results, name: str) -> str:
    """The sentences of a figure."""
    try:
        return "; ".join(draw(name, results.folder, results.collection).sentences).replace(f" ({PAPER})", "")
    except TooFew:
        return NOT_RUN


ASKABLE: Mapping[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        *(made, table, mean, minus, gap, searched, at_home, effort, paper, audit, penalties, penalty, figure),
        *(validation, robustness),
    )
}


ATTACKS = {
    "kills": "a sweep killed or interrupted, then continued",
    "invocations": "commands with wrong arguments",
    "bytes": "files with damaged bytes",
    "values": "files with wrong values",
    "pages": "names with scripts, on the page in a browser",
}
ENDS = {
    "same result": ("worked", "same"),
    "said what was left out": ("said",),
    "refused with a line": ("refused",),
    "traceback": ("traceback", "crash", "mute"),
    "hang": ("hang",),
    "silently different": ("silent", "lost", "executed"),
}
"""How attacks may end, and the outcomes of benchmarks/attacks/tries.py that are counted so."""


def attacks(record: Path) -> str:
    """What benchmarks/attack.py tried, and how it ended: by kind, and by format of the damaged file."""
    report = json.loads(record.read_text())
    kinds = report["kinds"]
    formats: dict[str, Counter[str]] = {}
    for kind in ("bytes", "values"):
        for name, outcomes in kinds[kind]["by_target"].items():
            formats.setdefault(name, Counter()).update(outcomes)
    parts = [
        _ends("attack", {ATTACKS[kind]: facts["outcomes"] for kind, facts in kinds.items()}),
        _ends("damaged file", dict(sorted(formats.items()))),
        f"Seed {report['seed']}, commit {report['commit']}, torch {report['torch']}, Python {report['python']}.",
    ]
    return "\n\n".join(parts)


def _ends(heading: str, rows: Mapping[str, Mapping[str, int]]) -> str:
    lines = []
    for title, outcomes in rows.items():
        counts = [sum(outcomes.get(name, 0) for name in names) for names in ENDS.values()]
        lines.append((title, *map(str, (sum(outcomes.values()), *counts))))
    return Table((heading, "tried", *ENDS), lines, labels=1).markdown_rows()


def answer(root: Path, words: str, known: dict[str, Results] | None = None) -> str:
    """The text of a marked place: e.g. "gap backgrounds DAT training-domain"; a name with spaces is put in quotes.

    Numbers may be those of other conditions: "until=5000", as if runs had ended after this step, "draws=4", as if no
    more had been drawn, or "against=DAT" in place of ERM. Results that were read stay in `known`.
    """
    question, name, *rest = shlex.split(words)
    if question == "attacks":
        return attacks(root / "bench" / name)
    conditions = dict(word.split("=") for word in rest if CONDITION.match(word))
    rest = [word for word in rest if not CONDITION.match(word)]
    if question not in ASKABLE:
        raise unknown("question to results", question, ASKABLE)
    results = (known if known is not None else {}).setdefault(name, Results(root / name))
    if not results.there:
        return NOT_RUN
    return ASKABLE[question](results, *rest, **conditions)


def filled(text: str, root: Path) -> str:
    """A page with all its places filled: a place that holds a line break is a block, any other part of a line."""
    known: dict[str, Results] = {}

    def fill(place: re.Match[str]) -> str:
        text = answer(root, place["words"], known)
        inside = f"\n\n{text}\n\n" if "\n" in place["old"] else text
        return f"<!-- results: {place['words']} -->{inside}<!-- /results -->"

    return PLACE.sub(fill, text)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        old = page.read_text(encoding="utf-8")
        if (new := filled(old, Path("results"))) != old:
            files.write(page, new)
