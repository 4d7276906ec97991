"""Tables for the pages that hold more than accuracies: the paper's numbers, audits, penalties, benchmarks, attacks."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from domainwise.analysis.shortcuts import ColourUse
from domainwise.core.table import NOT_RUN, Table
from domainwise.protocol.records import PenaltyRecord
from domainwise.protocol.selection import Curve, Method, Selection
from domainwise.protocol.statistics import Estimate, estimate
from domainwise.reports import paper_comparison
from domainwise.reports.figures import TooFew, draw
from domainwise.reports.paper_comparison import ComparedCell, PaperComparison, printed
from domainwise.sweeps.collection import read_penalties
from domainwise.sweeps.leaderboard import PAPER, plain
from published_results import Library, Results

AS_THE_PAPER = 2
"""Standard errors of a difference within which ours and the paper's number are said to agree."""
UNCERTAIN = 5.0
"""Points; where that many lie within these standard errors, nothing is said to agree."""


def compared_with_paper(results: Results, name: str) -> PaperComparison:
    """A table of the paper, its cells for the dataset of these results."""
    datasets = {run.dataset for run in results.collection.runs}
    compared = paper_comparison.compare(name, results.collection)
    return replace(compared, cells=tuple(cell for cell in compared.cells if cell.paper.dataset in datasets))


def paper(results: Results, name: str) -> str:
    """A table of the paper with our number for every cell, and a verdict."""
    rows = []
    for cell in compared_with_paper(results, name).cells:
        if cell.mean is not None:
            numbers = printed(cell.paper.mean, cell.paper.error), printed(cell.mean, cell.error)
            labels = str(cell.method), str(cell.column), cell.paper.selection
            rows.append([*labels, *numbers, verdict(cell), cell.effort])
    headings = ("method", "unseen", "selection", "paper", "ours", "verdict", "draws x trials x steps")
    return Table(headings, rows).markdown_rows()


def verdicts(library: Library, *compared: str) -> str:
    """How many of the paper's cells ours agree with, a row per table; each is "EXPERIMENT:TABLE"."""
    rows = []
    for words in compared:
        folder, name = words.split(":")
        comparison = compared_with_paper(library(folder), name)
        cells = [cell for cell in comparison.cells if cell.mean is not None]
        counts = Counter(verdict(cell).split(" ")[0].strip(":,") for cell in cells)
        known = [counts.pop(name, 0) for name in ("agrees", "open", "higher", "lower")]
        missing = [cell for cell in comparison.cells if cell.mean is None]
        table = f"Table {comparison.paper.number}" if comparison.paper.number else f"`{comparison.paper.label}`"
        dataset = cells[0].paper.dataset if cells else folder
        numbers = [len(cells), *known, sum(counts.values()), len(missing)]
        rows.append([f"{dataset}, {table}", *map(str, numbers), "; ".join(fewer(comparison.differences))])
    counted = ("cells run", "agree", "open", "higher", "lower", "no error known", "not run")
    return Table(("the paper's table", *counted, "fewer than the paper"), rows).markdown_rows()


def fewer(differences: Sequence[str]) -> list[str]:
    """Where ours have fewer of something: "8 of 20 draws" and "4 of 20 draws" are "4 to 8 of 20 draws"."""
    numbers: dict[str, list[int]] = {}
    for difference in differences:
        number, _, rest = difference.partition(" of ")
        if rest and number.isdigit():
            numbers.setdefault(rest, []).append(int(number))
    return [f"{' to '.join(map(str, sorted({min(n), max(n)})))} of {rest}" for rest, n in numbers.items()]


def verdict(cell: ComparedCell) -> str:
    """Whether our number agrees with the paper's, given both standard errors."""
    assert cell.mean is not None
    gap = cell.mean - cell.paper.mean
    if cell.error is None or cell.paper.error is None:
        return f"{gap:+.1f}, no error known"
    within = AS_THE_PAPER * (cell.error**2 + cell.paper.error**2) ** 0.5
    if abs(gap) <= within:
        return "agrees" if within < UNCERTAIN else f"open: {gap:+.1f} within ± {within:.0f}"
    return f"{'higher' if gap > 0 else 'lower'} by {abs(gap):.1f}"


def audit(results: Results, rule: str, *names: str, unseen: str = "") -> str:
    """Per method and unseen domain: what the models that a rule chose follow, colour or digit."""
    rows: dict[tuple[Method, str], list[tuple[Selection, ColourUse, bool]]] = {}
    for run in results.runs:
        choices = results.chosen.get(run, {})
        method, domain = plain(Method.of(run)), run.test_domains[0]
        if (names and str(method) not in names) or (unseen and domain != unseen):
            continue
        if rule in choices and run in results.colour_uses:
            rows.setdefault((method, domain), []).append((choices[rule], *results.colour_uses[run]))
    curves = {curve.run: curve for curve in results.collection.curves}
    headings = ("method", "unseen", "accuracy per trial", "in the last quarter", "follows", "colour, %", "digit, %")
    lines = []
    for (method, domain), audits in rows.items():
        late = [_last_quarter(curves[choice.run].accuracy[domain, "in"].tolist()) for choice, _, _ in audits]
        accuracies = ", ".join(f"{100 * choice.accuracy:.1f}" for choice, _, _ in audits)
        follows = ", ".join("nothing" if constant else use.follows for _, use, constant in audits)
        shares = [", ".join(f"{100 * getattr(use, of):.0f}" for _, use, _ in audits) for of in ("colour", "digit")]
        lines.append([str(method), domain, accuracies, ", ".join(late), follows, *shares])
    return Table(headings, lines).markdown_rows() if rows else NOT_RUN


def _last_quarter(accuracies: Sequence[float]) -> str:
    """Between which accuracies a run moved over the last quarter of its evaluations."""
    late = [100 * value for value in accuracies[-max(1, len(accuracies) // 4) :]]
    return f"{min(late):.0f} to {max(late):.0f}"


def memorised(results: Results, *names: str, unseen: str, until: str = "") -> str:
    """Accuracy at the last step: on images trained on, on held-out images of the same domains, on the unseen one."""
    rows = []
    for domain in unseen.split(","):
        for name in names:
            curves = [curve.until(int(until)) if until else curve for curve in results.curves(name, domain)]
            cells = (str(estimate(values)) if values else NOT_RUN for values in _last(curves, domain))
            rows.append([domain, name, *cells])
    headings = ("unseen", "method", "trained on", "held out, same domains", "unseen domain")
    return Table(headings, rows).markdown_rows()


def _last(curves: Sequence[Curve], unseen: str) -> Iterator[list[float]]:
    """The last accuracies of all curves: `in` and `out` of the training domains, `in` of the unseen one; per cent."""
    for split, domains in (("in", None), ("out", None), ("in", (unseen,))):
        known = (curve.mean(domains or curve.run.train_domains, split) for curve in curves)
        yield [100 * float(values[-1]) for values in known if values is not None]


def penalties(results: Results) -> str:
    """Every penalty after the last step, mean ± standard error over runs, and in how many pairs it is below ERM's."""
    last = last_penalties(results)
    names = {"irm": "IRM's", "at": "linearised AT's", "dat": "linearised DAT's", "ldat": "LDAT's"}
    rows = []
    for name, runs in last.items():
        cells = []
        for key in names:
            pairs = [(run[key], last["ERM"][pair][key]) for pair, run in runs.items() if pair in last.get("ERM", {})]
            lower = "" if name == "ERM" else f", lower in {sum(a < b for a, b in pairs)} of {len(pairs)}"
            cells.append(small([run[key] for run in runs.values()]) + lower)
        rows.append([name, *cells])
    return Table(("trained with", *names.values()), rows).markdown_rows()


def last_penalties(results: Results) -> dict[str, dict[tuple[str, int, int], dict[str, float]]]:
    """method -> (unseen domain, draw, trial) -> penalty -> mean over training domains, after the last step."""
    result: dict[str, dict[tuple[str, int, int], dict[str, float]]] = {}
    tracked = read_penalties(results.folder, results.runs)
    for run in (run for run in results.runs if run.id in tracked):
        rows = tracked[run.id]
        last: Sequence[PenaltyRecord] = [row for row in rows if row.step == rows[-1].step]
        means = {name: sum(getattr(row, name) for row in last) / len(last) for name in ("irm", "at", "dat", "ldat")}
        result.setdefault(str(Method.of(run)), {})[run.test_domains[0], run.draw, run.trial] = means
    return result


def small(values: Sequence[float]) -> str:
    """A mean and its error with few digits, for numbers far below one."""
    value: Estimate = estimate(values)
    return f"{value.mean:.2g}" if value.error is None else f"{value.mean:.2g} ± {value.error:.1g}"


def figure(results: Results, name: str) -> str:
    """The sentences of a figure, as a list."""
    try:
        sentences = draw(name, results.folder, results.collection).sentences
    except TooFew:
        return NOT_RUN
    return "\n".join(f"- {sentence.replace(f' ({PAPER})', '')}" for sentence in sentences)


FORMS = {
    "captured": "captured",
    "compiled": "compiled and captured",
    "8 in turns": "captured, 8 runs share the GPU",
}
"""How a step runs, by its name in the records of `domainwise bench`."""


def bench(root: Path, *names: str, precision: str = "bf16", only: str = "ERM,DAT,evaluation") -> str:
    """Times that `domainwise bench` measured in one precision, and those of its plain loop in the same process."""
    rows = []
    for name in names:
        report = json.loads((root / "bench" / name).read_text())
        plain_ms = {row["what"]: row["milliseconds"] for row in report["rows"] if row["what"].startswith("plain")}
        setup = f"{report['dataset']}, {report['network']}, {report['batch_size']} per domain"
        for row in report["rows"]:
            if row["precision"] == precision and row["what"] in only.split(",") and row["form"] in FORMS:
                name = "evaluation" if row["what"] == "evaluation" else "loop"
                times = [_milliseconds(value) for value in (plain_ms[f"plain {name}"], row["milliseconds"])]
                what = row["what"] if name == "evaluation" else f"{row['what']} step"
                rows.append([setup, what, FORMS[row["form"]], *times, f"{row['times_plain']:.3g} x"])
    headings = ("experiment", "what", "how", "plain PyTorch", "domainwise", "faster")
    return Table(headings, rows).markdown_rows()


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"


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


def attacks(root: Path, name: str, by: str = "kind") -> str:
    """What benchmarks/attack.py tried, and how it ended: by kind, or by format of the damaged file."""
    report = json.loads((root / "bench" / name).read_text())
    kinds = report["kinds"]
    if by == "kind":
        counts = _ends("attack", {ATTACKS[kind]: facts["outcomes"] for kind, facts in kinds.items()})
        made = f"Seed {report['seed']}, commit {report['commit']}, torch {report['torch']}, Python {report['python']}."
        return f"{counts}\n\n{made}"
    formats: dict[str, Counter[str]] = {}
    for kind in ("bytes", "values"):
        for target, outcomes in kinds[kind]["by_target"].items():
            formats.setdefault(target, Counter()).update(outcomes)
    return _ends("damaged file", dict(sorted(formats.items())))


def _ends(heading: str, rows: Mapping[str, Mapping[str, int]]) -> str:
    lines = []
    for title, outcomes in rows.items():
        counts = [sum(outcomes.get(name, 0) for name in names) for names in ENDS.values()]
        lines.append((title, *map(str, (sum(outcomes.values()), *counts))))
    return Table((heading, "tried", *ENDS), lines, labels=1).markdown_rows()
