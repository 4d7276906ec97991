"""Titles of figures: a claim computed from the records where they support one, else what is shown."""

from collections.abc import Mapping, Sequence

from domainwise.protocol.selection import Column, Method
from domainwise.protocol.statistics import Scores, paired
from domainwise.reports.style import labels
from domainwise.sweeps.accuracy_table import AccuracyTable, Row

NAMED = 3
"""Methods up to which a claim names each."""


def joined(names: Sequence[object]) -> str:
    """ "A", "A and B", "A, B and C"."""
    words = [str(name) for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def capital(words: str) -> str:
    """With a capital letter at its beginning."""
    return f"{words[0].upper()}{words[1:]}"


def accuracy_claim(table: AccuracyTable) -> str:
    """Which methods are clearly ahead of the baseline; without a comparison, what the table shows."""
    compared = [(row, row.difference) for row in table.rows if row.difference is not None]
    if not compared:
        return "accuracy on unseen domains"
    names, baseline = labels(row.method for row in table.rows), table.baseline
    ahead = sorted((pair for pair in compared if pair[1].clear and pair[1].mean > 0), key=lambda pair: -pair[1].mean)
    others = [names[row.method] for row, gap in compared if (row, gap) not in ahead]
    if len(compared) == 1:
        row, gap = compared[0]
        everywhere = _everywhere(row, table) if ahead else ""
        return f"{names[row.method]} is {gap.verdict} {baseline} ({gap.mean:+.1f} points){everywhere}"
    if not ahead:
        both = f"neither {others[0]} nor {others[1]}" if len(others) == 2 else f"none of {len(others)} methods"
        return f"{both} is clearly ahead of {baseline}"
    first = f"{names[ahead[0][0].method]} ({ahead[0][1].mean:+.1f} points)"
    if len(compared) > NAMED:
        verb, most = ("are", ", most of all") if len(ahead) > 1 else ("is", ":")
        return f"{len(ahead)} of {len(compared)} methods {verb} clearly ahead of {baseline}{most} {first}"
    everywhere = min((_everywhere(row, table) for row, _ in ahead), key=len)
    leaders = joined([f"{names[row.method]} ({gap.mean:+.1f} points)" for row, gap in ahead])
    rest = f"; {joined(others)} {'are' if len(others) > 1 else 'is'} not" if others else ""
    return f"{leaders} {'are' if len(ahead) > 1 else 'is'} clearly ahead of {baseline}{everywhere}{rest}"


def _everywhere(row: Row, table: AccuracyTable) -> str:
    """Said of a row whose mean is above the baseline's on every domain, of which there are several."""
    wanted = (Method(table.baseline, row.method.variant), Method(table.baseline))
    base = next((other for other in table.rows if other.method in wanted), None)
    if base is None or len(table.columns) < 2:
        return ""
    pairs = [(row.estimate(column), base.estimate(column)) for column in table.columns]
    above = all(own is not None and other is not None and own.mean > other.mean for own, other in pairs)
    return ", with higher means on every unseen domain" if above else ""


def order_claim(values: Scores, most: str, least: str) -> str:
    """Which method has the largest and which the smallest values: "MOST by A (+5.0) and LEAST by B (+1.0)".

    Empty unless the two differ clearly over pairs of runs that share domain and trial.
    """
    means = {method: _mean(by_column) for method, by_column in values.items()}
    if len(means) < 2:
        return ""
    high, low = max(means, key=lambda method: means[method]), min(means, key=lambda method: means[method])
    gap = paired(values[high], values[low])
    if gap is None or not gap.clear:
        return ""
    names = labels(values)
    return f"{most} by {names[high]} ({means[high]:+.1f} points) and {least} by {names[low]} ({means[low]:+.1f})"


def _mean(by_column: Mapping[Column, Mapping[int, float]]) -> float:
    columns = [sum(by_trial.values()) / len(by_trial) for by_trial in by_column.values()]
    return sum(columns) / len(columns)


def against_baseline(values: Scores, baseline: Method) -> dict[str, list[Method]]:
    """Other methods whose values are clearly "higher" or "lower" than the baseline's over pairs of runs."""
    result: dict[str, list[Method]] = {"higher": [], "lower": []}
    for method in (method for method in values if method != baseline):
        gap = paired(values[method], values[baseline])
        if gap is not None and gap.clear:
            result["higher" if gap.mean > 0 else "lower"].append(method)
    return result
