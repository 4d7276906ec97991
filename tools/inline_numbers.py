"""Single numbers for a place inside a line of a page."""

from domainwise.core.phrasing import counted
from domainwise.core.table import NOT_RUN
from domainwise.protocol.statistics import AVERAGE, averages_by_draws, estimate
from evidence_tables import last_penalties, small
from published_results import Results, plain


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
    if row is None or row.difference is None:
        return NOT_RUN
    clear = "clear" if row.difference.clear else "not clear"
    return f"{row.difference.measured.removesuffix(')')}, {clear})"


def searched(results: Results, name: str, rule: str, draws: str) -> str:
    """The average that a method is expected to reach with so many of its draws."""
    averages = averages_by_draws(results.collection.curves, results.of_rule(rule).columns, rule)
    values = next((values for method, values in averages.items() if str(plain(method)) == name), [])
    return str(values[int(draws) - 1]) if 0 < int(draws) <= len(values) else NOT_RUN


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


def penalty(results: Results, which: str, name: str, other: str) -> str:
    """The penalties of two methods after the last step, over the pairs of runs that share domain, draw and trial."""
    last = last_penalties(results)
    if name not in last or other not in last:
        return NOT_RUN
    pairs = [(last[name][key][which], last[other][key][which]) for key in last[name] if key in last[other]]
    ours, theirs = (small([pair[i] for pair in pairs]) for i in (0, 1))
    lower = sum(a < b for a, b in pairs)
    return f"{ours} after {name}, {theirs} after {other}, lower in {lower} of {len(pairs)} pairs of runs"
