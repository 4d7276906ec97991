"""What searching buys: accuracy against the number of draws that a rule may choose from."""

import math
from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from domainwise.protocol.selection import Curve, select
from domainwise.report.figures.request import Drawing, Request, TooFew
from domainwise.report.figures.style import legend, line_with_band, panels
from domainwise.report.palette import LIGHT, slots
from domainwise.report.statistics import Estimate, average, column_of, selected
from domainwise.report.tables import table_of
from domainwise.sweep.collection import searches

RULES = ("training-domain", "oracle")
"""One that does not look at the unseen domain, and one that does."""


def draws(request: Request) -> Drawing:
    """Mean accuracy over unseen domains against draws, by a rule that looks at them and by one that does not.

    Of n draws that were made, a point at k is what the rule is expected to choose from k of them taken at random; where
    all trials have as many, the last point is the table's. Bands are standard errors over trials. A method with one
    draw is not shown.
    """
    by_rule = {rule: _in_order(request, rule) for rule in dict.fromkeys((request.rule, *RULES))}
    by_rule = {rule: own for rule, own in by_rule.items() if own}
    if not by_rule:
        hint = "domainwise sweep --dataset {dataset} --algorithms ERM,DAT --hparams 8 --out {folder}"
        raise TooFew(request, "two draws of a method on every domain", hint)
    figure, axes = panels([f"by {rule} validation" for rule in by_rule], size=3.0)
    styles = slots(name for own in by_rule.values() for name in own)
    sentences = []
    for axis, (rule, own) in zip(axes, by_rule.items(), strict=True):
        for name, found in own.items():
            colour, dash = styles[name]
            means, errors = [e.mean for e in found], [e.error for e in found]
            line_with_band(axis, range(1, 1 + len(found)), means, errors, LIGHT[colour], name, dash)
            sentences.append(f"{name} by {rule} validation: {found[0]} % with 1 draw, {found[-1]} with {len(found)}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="draws", ylabel="accuracy on the unseen domain, %")
    legend(figure, axes[0])
    return Drawing(figure, sentences)


def _in_order(request: Request, rule: str) -> dict[str, list[Estimate]]:
    """What was searched by a rule, in more than one draw, as its table orders methods."""
    found = searched(request.curves, request.columns, rule)
    table = table_of(request.group, selected(request.curves, rule), rule)
    return {row.method: found[row.method] for row in table.rows if len(found[row.method]) > 1}


def searched(curves: Sequence[Curve], columns: Sequence[str], rule: str) -> dict[str, list[Estimate]]:
    """{method: the average over these columns with 1, 2, ... draws}."""
    ranked: dict[str, dict[str, dict[int, list[float]]]] = {}
    for (method, source, unseen, trial), draws in searches(curves).items():
        if own := preferred(draws, unseen, rule):
            ranked.setdefault(method, {}).setdefault(column_of(source, unseen), {})[trial] = own
    found = {}
    for method, by_column in ranked.items():
        most = min(len(own) for by_trial in by_column.values() for own in by_trial.values())
        scores = (
            {column: {t: expected(own, k) for t, own in by_trial.items()} for column, by_trial in by_column.items()}
            for k in range(1, 1 + most)
        )
        averages = [average(of_k, columns) for of_k in scores]
        found[method] = [one for one in averages if one is not None]
    return found


def preferred(curves: Sequence[Curve], unseen: str, rule: str) -> list[float]:
    """Accuracies, in per cent, of what a rule chooses, and of what it would choose next if that were not there."""
    left, found = list(curves), []
    while choice := select(left, unseen, rule):
        found.append(100 * choice.accuracy)
        left = [curve for curve in left if curve.run != choice.run]
    return found


def expected(ranked: Sequence[float], k: int) -> float:
    """The mean of a choice over all sets of k draws: draw j of n, best first, is the choice of C(n - 1 - j, k - 1)."""
    n = len(ranked)
    return sum(math.comb(n - 1 - j, k - 1) * value for j, value in enumerate(ranked)) / math.comb(n, k)
