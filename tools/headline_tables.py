"""What readers ask first: how large DAT's effect is and how sure, the paper's headline table, and the gap on PACS."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from domainwise.core.table import NOT_RUN, Table
from domainwise.protocol.selection import Column
from domainwise.protocol.statistics import Difference, Estimate, estimate, paired
from domainwise.reports import paper_comparison
from domainwise.reports.paper_comparison import printed
from evidence_tables import compared_with_paper, fewer, verdict
from published_results import Library, Results
from result_tables import ORACLE, TRAINING_DOMAIN, Asked
from result_tables import verdict as verdict_of


def effects(library: Library, name: str, *lines: str) -> str:
    """How much a method gains over ERM, a line per question: "TITLE = EXPERIMENT | EXPERIMENT & EXPERIMENT".

    Experiments are given as for `across`; the gains of those joined by "&" are one range. "paper cmnist:bench" is what
    the paper's table says of both, and what we have.
    """
    return "\n".join(_effect(library, name, *line.split(" = ", 1)) for line in lines)


def _effect(library: Library, name: str, title: str, asked: str) -> str:
    parts = []
    for part in asked.split(" | "):
        if part.startswith("paper "):
            parts.append(_claim(library, name, part.removeprefix("paper ")))
        else:
            parts.append(_gain([Asked.parse(words, name) for words in part.split(" & ")], library))
    return f"- **{title}**: {'; '.join(parts)}."


def _gain(asked: Sequence[Asked], library: Library) -> str:
    found = [difference for one in asked if (difference := one.difference(library)) is not None]
    label = f"{asked[0].label} " if asked[0].label else ""
    if len(found) < len(asked):
        return f"{label}{NOT_RUN}"
    if len(found) == 1:
        return f"{label}{found[0]} points ({_p(found[0].p)}, {verdict_of(found[0])})"
    low, high = (choice(found, key=lambda one: one.mean) for choice in (min, max))
    said = " or ".join(dict.fromkeys(map(verdict_of, found)))
    worst = max(found, key=lambda one: one.p).p
    return f"{label}{low.mean:+.1f} to {high.mean:+.1f} points in {len(found)} experiments ({_p(worst, 'p ≤')}, {said})"


def _p(p: float, relation: str = "p =") -> str:
    return f"{relation} {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def _claim(library: Library, name: str, words: str) -> str:
    """A method and ERM in a table of the paper, and ours with its search."""
    folder, table = words.split(":")
    comparison = compared_with_paper(library(folder), table)
    cells = {str(cell.method): cell for cell in comparison.cells if cell.paper.domain == "average"}
    both = tuple(cells[one] for one in (name, "ERM"))
    papers = " against ".join(printed(cell.paper.mean, cell.paper.error) for cell in both)
    ours = " against ".join(printed(cell.mean, cell.error) for cell in both)
    search = "; ".join(fewer(replace(comparison, cells=both).differences))
    return f"the paper has {papers}, we have {ours}{f' with {search}' if search else ''}"


def headline(results: Results, name: str) -> str:
    """A table of the paper over several datasets, all its cells: the paper's number, ours, and a verdict."""
    comparison = paper_comparison.compare(name, results.collection)
    datasets = dict.fromkeys((cell.paper.dataset, cell.paper.selection) for cell in comparison.cells)
    rows: dict[str, list[str]] = {}
    for cell in comparison.cells:
        ours = NOT_RUN if cell.mean is None else f"{printed(cell.mean, cell.error)}, {verdict(cell)}"
        rows.setdefault(str(cell.method), []).append(f"{printed(cell.paper.mean, cell.paper.error)} / {ours}")
    headings = ["method", *(f"{dataset}, {selection}: paper / ours" for dataset, selection in datasets)]
    run = sum(cell.mean is not None for cell in comparison.cells)
    search = "; ".join(fewer(comparison.differences))
    caption = f"{run} of {len(comparison.cells)} cells were run{f', with {search}' if search else ''}."
    return f"{Table(headings, [[name, *cells] for name, cells in rows.items()]).markdown_rows()}\n\n{caption}"


DOMAINBED = {
    TRAINING_DOMAIN: ((84.7, 0.4), (80.8, 0.6), (97.2, 0.3), (79.3, 1.0)),
    ORACLE: ((86.5, 1.0), (81.3, 0.6), (96.2, 0.3), (82.7, 1.1)),
}
"""ERM on PACS as DomainBed publishes it: Gulrajani and Lopez-Paz 2021, https://arxiv.org/abs/2007.01434, appendix, and
domainbed/results/2020_10_06_7df6f06/results.tex in its repository."""


def domainbed(results: Results) -> str:
    """Our ERM on PACS beside DomainBed's published one, with errors by its formula."""
    rows, columns = [], ("art_painting", "cartoon", "photo", "sketch")
    for rule, published in DOMAINBED.items():
        row = results.row("ERM", rule)
        assert row is not None
        ours = [row.as_domainbed().cells[Column(domain)] for domain in columns]
        gaps = [f"{own.mean - mean:+.1f}" for own, (mean, _) in zip(ours, published, strict=True)]
        rows += [[rule, "DomainBed, published", *(printed(*cell) for cell in published)]]
        rows += [[rule, "ours", *map(str, ours)], [rule, "ours minus published", *gaps]]
    return Table(("selection", "ERM", *columns), rows, labels=2).markdown_rows()


def control(root: Path, file: str) -> str:
    """Accuracies of benchmarks/pacs_control.py: a plain loop, then one ingredient of ours after the other."""
    path = root / "bench" / file
    if not path.exists():
        return NOT_RUN
    record = json.loads(path.read_text())
    scores = {name: _means(trials) for name, trials in record["accuracies"].items()}
    first = next(iter(scores))
    rows, before = [], first
    for name, by_trial in scores.items():
        accuracy: Estimate = estimate(list(by_trial.values()))
        gaps = [_gap(by_trial, scores[other]) if name != first else None for other in (first, before)]
        cells = [("", "") if gap is None else (str(gap), _p(gap.p).removeprefix("p = ")) for gap in gaps]
        rows.append([name.replace(",", ", "), str(len(by_trial)), str(accuracy), *cells[0], *cells[1]])
        before = name
    headings = ("with", "seeds", "accuracy", f"minus {first}", "p", "minus the row above", "p")
    machine = record["machine"]
    made = f"{machine['device']}, torch {machine['torch']}, {machine['date']}"
    caption = f"Mean of the evaluations after the first; {record['unseen']} unseen, {record['steps']} steps; {made}."
    return f"{Table(headings, rows).markdown_rows()}\n\n{caption}"


def _means(trials: Mapping[str, Sequence[float]]) -> dict[int, float]:
    """Of every trial the mean accuracy in per cent, without the first evaluation, which is before training."""
    return {int(trial): 100 * sum(values[1:]) / len(values[1:]) for trial, values in trials.items()}


def _gap(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    column = Column("unseen")
    return paired({column: a}, {column: b})
