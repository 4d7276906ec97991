"""Figures that compare methods: side by side, on every unseen domain, and against the number of draws."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from domainwise.core.phrasing import counted
from domainwise.protocol.selection import Method
from domainwise.protocol.statistics import AVERAGE, Estimate, averages_by_draws, selected
from domainwise.reports.figures.claims import NAMED, accuracy_claim, capital, joined
from domainwise.reports.figures.end_labels import End, label_ends
from domainwise.reports.figures.request import Drawing, Request, TooFew
from domainwise.reports.style import (
    FIRST,
    GROUND,
    HAIR,
    LIGHT,
    NEUTRAL,
    SMALL,
    SOFT,
    TEXT,
    WIDTH,
    labels,
    line_with_band,
    panels,
    plain,
    slots,
)
from domainwise.sweeps.accuracy_table import AccuracyTable, Row

INCHES = 0.21
"""Of height per method."""
FAR = 15.0
"""Points below the median method from which one is named at the edge, so that it does not squeeze all others."""
DODGE = 0.55
"""Of the distance between two domains, the width over which their methods are spread."""
SEARCH_RULES = ("training-domain", "oracle")
"""One that does not use the unseen domain, and one that does."""


def methods(request: Request) -> Drawing:
    """Every method's average over unseen domains with its standard error, the best first; domains are small dots.

    At the right the paired difference to ERM, a full dot where it is clear. Methods far below the others are numbers at
    the left edge.
    """
    table = request.table(selected(request.curves, request.rule))
    known = [(row, row.average) for row in table.rows if row.average is not None]
    if len(known) < 2:
        raise TooFew(request, "two methods evaluated on every domain", algorithms="ERM,DAT", hparams=1)
    known.sort(key=lambda item: item[1].mean)
    compared = any(row.difference is not None for row, _ in known)
    figure = Figure(figsize=(WIDTH, INCHES * len(known) + 1.6), layout="constrained")
    axes = figure.subplots(1, 1 + compared, sharey=True, squeeze=False, width_ratios=[5, 3][: 1 + compared])[0]
    far = statistics.median(average.mean for _, average in known) - FAR
    _averages_axis(axes[0], known, far)
    axes[0].set_title("average over unseen domains")
    caption = (
        f"Left: large dots are averages over {counted(len(table.columns), 'unseen domain')}, bars ± one standard error "
        f"over trials, small dots single domains, the dashed line {table.baseline}. "
    )
    if compared:
        _differences_axis(axes[1], [row if average.mean >= far else None for row, average in known])
        axes[1].set(xlabel="points", title=f"minus {table.baseline}, paired")
        sentences = [table.sentence(row.method) for row, _ in reversed(known) if row.difference is not None]
        caption += f"Right: mean ± one standard error over pairs of runs; full dots are clear. {table.test} "
    else:
        sentences = [f"{table.baseline} was not run here: differences to it cannot be tested."]
    return Drawing(figure, accuracy_claim(table), caption + _made(table), sentences)


def _made(table: AccuracyTable) -> str:
    """Selection rule, chance, network and effort."""
    return f"{capital(table.context)}."


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
            axis.text(edge, position, f"◂ {average}", color=colour, va="center", size=SMALL)
            continue
        axis.errorbar([average.mean], [position], xerr=[average.bar], fmt="o", color=colour, capsize=2.5, markersize=5)
        if row.method.algorithm == NEUTRAL and not row.method.average and not row.method.combined:
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


def domains(request: Request) -> Drawing:
    """Every method's accuracy on each unseen domain and on average, with standard errors over trials."""
    table = request.table(selected(request.curves, request.rule))
    rows = [row for row in table.rows if row.cells]
    if len(rows) < 2 or not any(row.average for row in rows):
        raise TooFew(request, "two methods, one of them evaluated on every domain", algorithms="ERM,DAT", hparams=1)
    columns = [*table.columns, AVERAGE] if len(table.columns) > 1 else list(table.columns)
    figure, (axis,) = panels([""], height=3.4)
    methods = [row.method for row in rows]
    styles, names = slots(methods), labels(methods)
    ends = []
    for i, row in enumerate(rows):
        colour = LIGHT[styles[row.method][0]]
        known = [(x, e) for x, column in enumerate(columns) if (e := row.estimate(column)) is not None]
        places = [x + DODGE * (i - (len(rows) - 1) / 2) / len(rows) for x, _ in known]
        means, errors = [e.mean for _, e in known], [e.bar for _, e in known]
        axis.errorbar(
            places, means, yerr=errors, label=names[row.method], fmt="o", color=colour, capsize=3, markersize=6
        )
        if row.average is not None:
            ends.append(End(f"{names[row.method]} {row.average.mean:.1f}", colour, row.average.mean))
    axis.set_xticks(range(len(columns)), [plain(str(column), 24) for column in columns])
    axis.tick_params("x", labelsize=TEXT)
    axis.grid(axis="x", visible=False)
    if AVERAGE in columns:
        axis.axvspan(len(columns) - 1.5, len(columns) - 0.5, color=HAIR, alpha=0.5, linewidth=0, zorder=0)
    axis.set(ylabel="accuracy on the unseen domain, %", xlim=(-0.5, len(columns) - 0.5))
    if table.chance is not None and axis.get_ylim()[0] < table.chance:
        axis.axhline(table.chance, color=SOFT, linewidth=0.8, linestyle=(0, (1, 2)))
    label_ends([axis], ends if len(ends) == len(rows) else [])
    sentences = [table.sentence(row.method) for row in table.rows if row.difference is not None]
    caption = f"Dots are means, bars ± one standard error over trials. {table.test} {_made(table)}"
    return Drawing(figure, accuracy_claim(table), caption, sentences)


def draws(request: Request) -> Drawing:
    """Mean accuracy over unseen domains against draws, by training-domain and by oracle validation.

    Of n draws that were made, a point at k is what the rule is expected to choose from k of them taken at random; where
    all trials have as many, the last point is the table's. Bands are standard errors over trials. A method with one
    draw is not shown.
    """
    by_rule = {rule: _averages(request, rule) for rule in dict.fromkeys((request.rule, *SEARCH_RULES))}
    by_rule = {rule: averages for rule, averages in by_rule.items() if averages}
    if not by_rule:
        raise TooFew(request, "two draws of a method on every domain", algorithms="ERM,DAT", hparams=8)
    figure, axes = panels([f"by {rule} validation" for rule in by_rule], height=3.6)
    shown = [method for averages in by_rule.values() for method in averages]
    styles, names = slots(shown), labels(shown)
    sentences = []
    ends: list[End] = []
    for axis, (rule, averages) in zip(axes, by_rule.items(), strict=True):
        ends = []
        for method, by_draws in averages.items():
            colour, dash = styles[method]
            means, errors = [e.mean for e in by_draws], [e.bar for e in by_draws]
            line_with_band(axis, range(1, 1 + len(means)), means, errors, LIGHT[colour], names[method], dash)
            ends.append(End(names[method], LIGHT[colour], means[-1]))
            first, last = by_draws[0], by_draws[-1]
            sentences.append(
                f"{method} by {rule} validation: {first} % with 1 draw, {last} with {len(means)} "
                f"({counted(last.n, 'trial')})"
            )
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="draws to choose from")
    axes[0].set(ylabel="accuracy on the unseen domain, %")
    label_ends(axes, ends if len(ends) == len(set(shown)) else [])
    trials = sorted({e.n for averages in by_rule.values() for by_draws in averages.values() for e in by_draws})
    caption = (
        f"Average over {counted(len(request.columns), 'unseen domain')}: what a rule is expected to choose from k of "
        f"the draws that were made. Bands are ± one standard error over {'–'.join(map(str, trials))} trials."
    )
    return Drawing(figure, _draws_claim(by_rule), caption, sentences)


def _draws_claim(by_rule: dict[str, dict[Method, list[Estimate]]]) -> str:
    """What all draws instead of one change, of the methods with the most."""
    most = max(len(by_draws) for averages in by_rule.values() for by_draws in averages.values())
    gains: dict[Method, dict[str, float]] = {}
    for rule, averages in by_rule.items():
        for method, by_draws in averages.items():
            if len(by_draws) == most:
                gains.setdefault(method, {})[rule] = by_draws[-1].mean - by_draws[0].mean
    if len(gains) > NAMED:
        return f"accuracy against the number of draws, up to {most}"
    names = labels(gains)
    parts = [
        f"{names[method]} {joined([f'{gain:+.1f} ({rule})' for rule, gain in by.items()])}"
        for method, by in gains.items()
    ]
    return f"{most} draws instead of 1 change accuracy by these points: {'; '.join(parts)}"


def _averages(request: Request, rule: str) -> dict[Method, list[Estimate]]:
    """The averages of every method with more than one draw, in the order of its table."""
    averages = averages_by_draws(request.curves, request.columns, rule)
    table = replace(request, rule=rule).table(selected(request.curves, rule))
    return {row.method: averages[row.method] for row in table.rows if len(averages.get(row.method, ())) > 1}
