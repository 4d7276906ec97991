"""Figures over the steps of training: accuracies and penalties."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from domainwise.core.phrasing import counted
from domainwise.protocol.records import PenaltyRecord
from domainwise.protocol.selection import Column, Method
from domainwise.protocol.statistics import Estimate, accuracies, choices, estimate
from domainwise.reports.figures.request import Drawing, Request, TooFew
from domainwise.reports.learning_curves import (
    LearningCurve,
    Measure,
    generalisation_gap,
    learning_curves,
    unseen_accuracy,
)
from domainwise.reports.style import GROUND, LIGHT, labels, legend, line, line_with_band, panels, slots
from domainwise.sweeps.collection import read_penalties
from domainwise.sweeps.tables import table_of

FEW = 5
"""Trials that are drawn one by one instead of their standard error."""
PENALTIES = {"irm": "IRM", "at": "AT", "dat": "DAT", "ldat": "LDAT"}


def curves(request: Request) -> Drawing:
    """Accuracy on every unseen domain against steps: of the selected runs, the mean over trials and each of a few."""
    by_column = _chosen(request, unseen_accuracy)
    if not any(len(one.steps) > 1 for curves in by_column.values() for one in curves):
        raise TooFew(
            request, "a run that leaves a domain out and was evaluated there twice", "--algorithms ERM,DAT --hparams 1"
        )
    return Drawing(_over_steps(by_column, "accuracy, %"), [])


def memory(request: Request) -> Drawing:
    """Memorisation: how much higher accuracy is on images trained on than on held-out images of the same domains.

    Against steps, a panel per unseen domain; of the selected runs, the mean over trials and each of a few.
    """
    by_column = _chosen(request, generalisation_gap)
    if not by_column:
        raise TooFew(
            request,
            "runs that were evaluated on all images they trained on",
            "--algorithms ERM,DAT --hparams 1 --full-curves",
        )
    sentences = [
        f"{one.method}, {column} unseen: {_signed(one.estimates[-1])} points after {one.steps[-1]} steps "
        f"({counted(one.estimates[-1].n, 'trial')})"
        for column, curves in by_column.items()
        for one in curves
    ]
    return Drawing(_over_steps(by_column, "points"), sentences)


def _signed(value: Estimate) -> str:
    return f"+{value}" if value.mean >= 0 else str(value)


def _chosen(request: Request, measure: Measure) -> dict[Column, list[LearningCurve]]:
    chosen = choices(request.curves, request.rule)
    rows = table_of(request.group, accuracies(chosen), request.rule).rows
    in_order = {row.method: chosen[row.method] for row in rows}
    return learning_curves(request.curves, in_order, request.columns, measure)


def _over_steps(by_column: Mapping[Column, Sequence[LearningCurve]], label: str) -> Figure:
    """A panel per column, a line per method, and the selected points."""
    figure, axes = panels(by_column, size=2.4)
    methods = [one.method for curves in by_column.values() for one in curves]
    styles, names = slots(methods), labels(methods)
    for axis, curves in zip(axes, by_column.values(), strict=True):
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
        axis.set(xlabel="step", ylim=_limits(curves))
    axes[0].set(ylabel=label)
    legend(figure, axes[0])
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
    tracked = read_penalties(request.folder, [curve.run for curve in request.curves])
    for curve in request.curves:
        if curve.run.id in tracked and not curve.average:
            rows.setdefault(curve.method, []).append(tracked[curve.run.id])
    if not rows:
        raise TooFew(request, "runs that tracked penalties", "--algorithm DAT --track penalties", "train")
    figure, axes = panels([f"Penalty of {name}" for name in PENALTIES.values()], size=2.5)
    styles, names = slots(rows), labels(rows)
    for axis, penalty in zip(axes, PENALTIES, strict=True):
        lowest = float("inf")
        for method, runs in rows.items():
            colour, dash = styles[method]
            by_step: dict[int, list[float]] = {}
            for rows_of_run in runs:
                steps = sorted({row.step for row in rows_of_run})
                for step in steps:
                    values = [getattr(row, penalty) for row in rows_of_run if row.step == step]
                    by_step.setdefault(step, []).append(sum(values) / len(values))
            shown = {step: estimate(values) for step, values in sorted(by_step.items())}
            lowest = min(lowest, *(e.mean - e.bar for e in shown.values()))
            means, errors = [e.mean for e in shown.values()], [e.bar for e in shown.values()]
            line_with_band(axis, list(shown), means, errors, LIGHT[colour], names[method], dash)
        if lowest > 0:
            axis.set_yscale("log")
        axis.set(xlabel="step")
    axes[0].set(ylabel="mean over training domains")
    legend(figure, axes[0])
    return Drawing(figure, [])
