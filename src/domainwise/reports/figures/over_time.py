"""Figures over the steps of training: accuracies and penalties."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from domainwise.core.phrasing import counted
from domainwise.protocol.records import PenaltyRecord
from domainwise.protocol.selection import Column, Method
from domainwise.protocol.statistics import Choices, Estimate, Scores, accuracies, choices, estimate
from domainwise.reports.figures.claims import accuracy_claim, against_baseline, capital, joined, order_claim
from domainwise.reports.figures.end_labels import End, label_ends
from domainwise.reports.figures.request import Drawing, Request, TooFew
from domainwise.reports.learning_curves import (
    LearningCurve,
    generalisation_gap,
    learning_curves,
    unseen_accuracy,
)
from domainwise.reports.style import (
    COLUMNS,
    GROUND,
    LIGHT,
    NEUTRAL,
    SOFT,
    few_ticks,
    labels,
    line,
    line_with_band,
    panels,
    slots,
)
from domainwise.sweeps.accuracy_table import AccuracyTable
from domainwise.sweeps.collection import read_penalties

FEW = 5
"""Trials that are drawn one by one instead of their standard error."""
DRAWS = 1_000_000
"""More than there are draws: numbers runs by trial and draw."""
PENALTIES = {"irm": "IRM", "at": "AT", "dat": "DAT", "ldat": "LDAT"}


def curves(request: Request) -> Drawing:
    """Accuracy on every unseen domain against steps: of the selected runs, the mean over trials and each of a few."""
    table, chosen = _chosen(request)
    by_column = learning_curves(request.curves, chosen, request.columns, unseen_accuracy)
    if not any(len(one.steps) > 1 for curves in by_column.values() for one in curves):
        raise TooFew(
            request, "a run that leaves a domain out and was evaluated there twice", algorithms="ERM,DAT", hparams=1
        )
    figure = _over_steps(by_column, "accuracy, %", table.chance)
    caption = f"Accuracy on the unseen domain above each panel. {_lines(by_column)} {capital(table.context)}."
    return Drawing(figure, f"at the selected steps, {accuracy_claim(table)}", caption)


def memory(request: Request) -> Drawing:
    """Memorisation: how much higher accuracy is on images trained on than on held-out images of the same domains.

    Against steps, a panel per unseen domain; of the selected runs, the mean over trials and each of a few.
    """
    table, chosen = _chosen(request)
    by_column = learning_curves(request.curves, chosen, request.columns, generalisation_gap)
    if not by_column:
        raise TooFew(
            request,
            "runs that were evaluated on all images they trained on",
            algorithms="ERM,DAT",
            hparams=1,
            full_curves=True,
        )
    sentences = [
        f"{one.method}, {column} unseen: {_signed(one.estimates[-1])} points after {one.steps[-1]} steps "
        f"({counted(one.estimates[-1].n, 'trial')})"
        for column, curves in by_column.items()
        for one in curves
    ]
    last: Scores = {}
    for column, curves in by_column.items():
        for one in curves:
            trials = [trial for _, _, trial in one.chosen]
            ends = {trial: run[-1] for trial, run in zip(trials, one.runs, strict=True)}
            last.setdefault(one.method, {})[column] = ends
    claim = order_claim(last, "training images are memorised most", "least")
    caption = (
        f"Accuracy on images trained on minus accuracy on held-out images of the same domains. {_lines(by_column)} "
        f"Panels: the unseen domain. {capital(table.context)}."
    )
    figure = _over_steps(by_column, "points")
    return Drawing(figure, claim or "memorisation of training images", caption, sentences)


def _signed(value: Estimate) -> str:
    return f"+{value}" if value.mean >= 0 else str(value)


def _chosen(request: Request) -> tuple[AccuracyTable, Choices]:
    """The rule's choices, and their table, whose rows have the same order."""
    chosen = choices(request.curves, request.rule)
    table = request.table(accuracies(chosen))
    return table, {row.method: chosen[row.method] for row in table.rows if row.method in chosen}


def _lines(by_column: Mapping[Column, Sequence[LearningCurve]]) -> str:
    """What the lines are, in words."""
    several = {len(one.runs) for curves in by_column.values() for one in curves} - {1}
    if not several:
        return "Lines are single runs, circles the selected steps."
    bands = "bands ± one standard error over trials" if max(several) > FEW else "thin lines single runs"
    few = " (of few trials, thin lines are the runs)" if max(several) > FEW >= min(several) else ""
    return f"Thick lines are means over trials, {bands}{few}, circles the selected steps."


def _over_steps(by_column: Mapping[Column, Sequence[LearningCurve]], label: str, chance: float | None = None) -> Figure:
    """A panel per column, a line per method, and the selected points."""
    figure, axes = panels(by_column, height=2.9)
    methods = list(dict.fromkeys(one.method for curves in by_column.values() for one in curves))
    styles, names = slots(methods), labels(methods)
    ends: list[End] = []
    for axis, curves in zip(axes, by_column.values(), strict=True):
        ends = []
        for one in curves:
            colour, dash = styles[one.method]
            ink = LIGHT[colour]
            if len(one.runs) > FEW:
                line_with_band(axis, one.steps, one.mean, one.error, ink, names[one.method], dash)
            else:
                line(axis, one.steps, one.mean, ink, names[one.method], dash)
                for run in one.runs:
                    axis.plot(one.steps[: len(run)], run, color=ink, alpha=0.4, linewidth=0.6)
            steps, chosen, _ = zip(*one.chosen, strict=True)
            axis.scatter(steps, chosen, s=14, facecolors=GROUND, edgecolors=ink, zorder=3)
            ends.append(End(names[one.method], ink, one.mean[-1]))
        low, high = _limits(curves)
        if chance is not None and low < chance < high:
            axis.axhline(chance, color=SOFT, linewidth=0.8, linestyle=(0, (1, 2)))
        axis.set(xlabel="step", ylim=(low, high))
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axis in axes[::COLUMNS]:
        axis.set(ylabel=label)
    label_ends(axes, ends if len(ends) == len(methods) else [])
    return figure


def _limits(curves: Sequence[LearningCurve]) -> tuple[float, float]:
    """The range of accuracies after the first step, and of the selected ones; the first evaluation may lie outside."""
    shown = [value for one in curves for _, value, _ in one.chosen]
    for one in curves:
        shown += [value for run in one.runs for step, value in zip(one.steps, run, strict=False) if step > 0]
    margin = 0.05 * (max(shown) - min(shown)) + 0.5
    return min(shown) - margin, max(shown) + margin


def penalties(request: Request) -> Drawing:
    """The penalties of IRM and of linearised AT and DAT against steps: mean over domains, then over runs."""
    rows: dict[Method, list[list[PenaltyRecord]]] = {}
    ends: dict[str, Scores] = {penalty: {} for penalty in PENALTIES}
    tracked = read_penalties(request.folder, [curve.run for curve in request.curves])
    shown = [curve for curve in request.curves if curve.run.id in tracked and not curve.average]
    for curve in shown:
        run, values = curve.run, tracked[curve.run.id]
        rows.setdefault(curve.method, []).append(values)
        for penalty, scores in ends.items():
            last = _by_step(values, penalty)
            by_run = scores.setdefault(curve.method, {}).setdefault(Column(",".join(run.test_domains)), {})
            by_run[run.trial * DRAWS + run.draw] = last[max(last)]
    if not rows:
        raise TooFew(request, "runs that tracked penalties", "train", algorithm="DAT", track="penalties")
    figure, axes = panels([f"Penalty of {name}" for name in PENALTIES.values()], height=2.9)
    styles, names = slots(rows), labels(rows)
    labelled: list[End] = []
    for axis, penalty in zip(axes, PENALTIES, strict=True):
        lowest = float("inf")
        labelled = []
        for method, runs in rows.items():
            colour, dash = styles[method]
            by_step: dict[int, list[float]] = {}
            for rows_of_run in runs:
                for step, value in _by_step(rows_of_run, penalty).items():
                    by_step.setdefault(step, []).append(value)
            means = {step: estimate(values) for step, values in sorted(by_step.items())}
            lowest = min(lowest, *(e.mean - e.bar for e in means.values()))
            middle, errors = [e.mean for e in means.values()], [e.bar for e in means.values()]
            line_with_band(axis, list(means), middle, errors, LIGHT[colour], names[method], dash)
            labelled.append(End(names[method], LIGHT[colour], middle[-1]))
        if lowest > 0:
            axis.set_yscale("log")
            few_ticks(axis.yaxis)
        axis.set(xlabel="step")
        _leave_out_start(axis)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes[0].set(ylabel="mean over training domains")
    label_ends(axes, labelled)
    caption = (
        "Lines are means over runs of the mean over training domains, bands ± one standard error over runs; panels "
        f"with positive values only have a logarithmic scale; values before training may lie outside. "
        f"{request.n(shown)}."
    )
    return Drawing(figure, _penalty_claim(ends["irm"]), caption)


def _leave_out_start(axis: Axes) -> None:
    """Axes with room for all lines but their first points, which a few steps of training make the past."""
    values = [y for one in axis.lines for x, y in np.asarray(one.get_xydata()).tolist() if x > 0]
    if not values:
        return
    if axis.get_yscale() == "log":
        axis.set_ylim(min(values) / 1.5, max(values) * 1.5)
    else:
        axis.set_ylim(min(values) - (room := 0.25 * (max(values) - min(values)) or 1.0), max(values) + room)


def _by_step(rows: Sequence[PenaltyRecord], penalty: str) -> dict[int, float]:
    """{step: the mean over training domains} of one run."""
    values: dict[int, list[float]] = {}
    for row in rows:
        values.setdefault(row.step, []).append(getattr(row, penalty))
    return {step: sum(values[step]) / len(values[step]) for step in sorted(values)}


def _penalty_claim(ends: Scores) -> str:
    """Which methods end with a clearly lower or higher penalty of IRM than ERM."""
    baseline = next((method for method in ends if method.algorithm == NEUTRAL), None)
    differing = against_baseline(ends, baseline) if baseline is not None else {}
    parts = [f"{word} after {joined(methods)}" for word, methods in differing.items() if methods]
    if not parts:
        return "penalties over training"
    return f"IRM's penalty ends clearly {' and '.join(parts)} than after {baseline}"
