"""All methods of an experiment beside each other, and what searching hyper-parameters buys."""

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from domainwise.core.phrasing import counted
from domainwise.protocol.dataset_names import title
from domainwise.protocol.selection import Method
from domainwise.protocol.statistics import Estimate, averages_by_draws, selected
from domainwise.reports.figures.request import Drawing, Request, TooFew
from domainwise.reports.style import (
    FIRST,
    GROUND,
    HAIR,
    LIGHT,
    NEUTRAL,
    SOFT,
    labels,
    legend,
    line_with_band,
    panels,
    slots,
)
from domainwise.sweeps.tables import Row, table_of

INCHES = 0.21
"""Of height per method."""
FAR = 15.0
"""Points below the median method from which one is named at the edge, so that it does not squeeze all others."""
SEARCH_RULES = ("training-domain", "oracle")
"""One that does not use the unseen domain, and one that does."""


def methods(request: Request) -> Drawing:
    """Every method's average over unseen domains with its standard error, the best first; domains are small dots.

    At the right the paired difference to ERM, a full dot where it is clear. Methods far below the others are numbers at
    the left edge.
    """
    table = table_of(request.group, selected(request.curves, request.rule), request.rule)
    known = [(row, row.average) for row in table.rows if row.average is not None]
    if len(known) < 2:
        raise TooFew(request, "two methods evaluated on every domain", "--algorithms ERM,DAT --hparams 1")
    known.sort(key=lambda item: item[1].mean)
    compared = any(row.difference is not None for row, _ in known)
    figure = Figure(figsize=(8.6 if compared else 6.4, INCHES * len(known) + 0.9), layout="constrained")
    axes = figure.subplots(1, 1 + compared, sharey=True, squeeze=False, width_ratios=[5, 3][: 1 + compared])[0]
    far = statistics.median(average.mean for _, average in known) - FAR
    _averages_axis(axes[0], known, far)
    axes[0].set_title(f"{title(request.group.experiment.dataset)}, by {request.rule} validation")
    if compared:
        _differences_axis(axes[1], [row if average.mean >= far else None for row, average in known])
        axes[1].set(xlabel="points; full dots are clear", title=f"minus {table.baseline}, paired")
        sentences = [table.sentence(row.method) for row, _ in reversed(known) if row.difference is not None]
    else:
        sentences = [f"{table.baseline} was not run here: differences to it cannot be tested."]
    return Drawing(figure, sentences)


def _colour(row: Row) -> str:
    return LIGHT[{NEUTRAL: 0, FIRST: 1}.get(row.method.algorithm, 3)]


def _averages_axis(axis: Axes, known: Sequence[tuple[Row, Estimate]], far: float) -> None:
    near = [cell.mean for row, average in known if average.mean >= far for cell in row.cells.values()]
    edge, right = min(near), max(near)
    for position, (row, average) in enumerate(known):
        colour = _colour(row)
        domains = [cell.mean for cell in row.cells.values()]
        axis.scatter(domains, [position] * len(domains), s=9, color=colour, alpha=0.4, linewidths=0)
        if average.mean < far:
            axis.text(edge, position, f"◂ {average}", color=colour, va="center", size="small")
            continue
        axis.errorbar([average.mean], [position], xerr=[average.bar], fmt="o", color=colour, capsize=2.5, markersize=5)
        if row.method.algorithm == NEUTRAL and not row.method.average:
            axis.axvline(average.mean, color=SOFT, linewidth=0.7, linestyle=(0, (4, 2)))
    axis.set_yticks(range(len(known)), [str(row.method) for row, _ in known])
    axis.grid(axis="y", color=HAIR)
    axis.set(xlabel="accuracy on the unseen domain, %", ylim=(-0.7, len(known) - 0.3))
    margin = 0.04 * (right - edge) or 1.0
    axis.set_xlim(edge - margin, right + margin)


def _differences_axis(axis: Axes, rows: Sequence[Row | None]) -> None:
    """Full dots are clear differences; None is a method far below the others."""
    axis.axvline(0, color=SOFT, linewidth=0.7, linestyle=(0, (4, 2)))
    axis.grid(axis="y", color=HAIR)
    for position, row in enumerate(rows):
        if row is not None and row.difference is not None:
            colour, gap = _colour(row), row.difference
            axis.errorbar(
                [gap.mean],
                [position],
                xerr=[gap.error or 0.0],
                fmt="o",
                color=colour,
                markerfacecolor=colour if gap.clear else GROUND,
                capsize=2.5,
                markersize=5,
            )


def draws(request: Request) -> Drawing:
    """Mean accuracy over unseen domains against draws, by training-domain and by oracle validation.

    Of n draws that were made, a point at k is what the rule is expected to choose from k of them taken at random; where
    all trials have as many, the last point is the table's. Bands are standard errors over trials. A method with one
    draw is not shown.
    """
    by_rule = {rule: _averages(request, rule) for rule in dict.fromkeys((request.rule, *SEARCH_RULES))}
    by_rule = {rule: averages for rule, averages in by_rule.items() if averages}
    if not by_rule:
        raise TooFew(request, "two draws of a method on every domain", "--algorithms ERM,DAT --hparams 8")
    figure, axes = panels([f"by {rule} validation" for rule in by_rule], size=3.0)
    shown = [method for averages in by_rule.values() for method in averages]
    styles, names = slots(shown), labels(shown)
    sentences = []
    for axis, (rule, averages) in zip(axes, by_rule.items(), strict=True):
        for method, by_draws in averages.items():
            colour, dash = styles[method]
            means, errors = [e.mean for e in by_draws], [e.bar for e in by_draws]
            line_with_band(axis, range(1, 1 + len(means)), means, errors, LIGHT[colour], names[method], dash)
            first, last = by_draws[0], by_draws[-1]
            sentences.append(
                f"{method} by {rule} validation: {first} % with 1 draw, {last} with {len(means)} "
                f"({counted(last.n, 'trial')})"
            )
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="draws", ylabel="accuracy on the unseen domain, %")
    legend(figure, axes[0])
    return Drawing(figure, sentences)


def _averages(request: Request, rule: str) -> dict[Method, list[Estimate]]:
    """The averages of every method with more than one draw, in the order of its table."""
    averages = averages_by_draws(request.curves, request.columns, rule)
    table = table_of(request.group, selected(request.curves, rule), rule)
    return {row.method: averages[row.method] for row in table.rows if len(averages[row.method]) > 1}
