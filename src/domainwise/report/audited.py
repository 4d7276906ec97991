"""Audits as a figure: accuracy of every class in every domain, and which domains the features tell apart."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from domainwise.analysis.audit import Audit
from domainwise.report.canvas import grid, plain

WRITABLE = 12
"""Columns up to which every cell shows its number."""


def audit_figure(audits: Sequence[Audit]) -> Figure:
    """One row per model: the accuracy per class and domain (the worst pair framed), and the probe's confusions."""
    figure, axes = grid(len(audits), 2, size=2.2, margins=(4.4, 0.4), widths=(2.2, 1))
    for found, (left, right) in zip(audits, axes, strict=True):
        domains = [score.domain for score in found.scores]
        names = [score.domain if score.seen else f"{score.domain} (unseen)" for score in found.scores]
        cells = [[*(100 * score.per_class).tolist(), 100 * score.accuracy] for score in found.scores]
        _cells(left, cells, names, [*found.classes, "all"], "Blues")
        left.set_title(f"{found.name}: accuracy per class, %", fontsize=9)
        if found.worst:
            corner = found.classes.index(found.worst.label) - 0.5, domains.index(found.worst.domain) - 0.5
            left.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#d7301f", linewidth=2))
        if found.probe is None:
            right.set_axis_off()
            continue
        told = (100 * found.probe.confusion).tolist()
        _cells(right, told, list(found.probe.domains), list(found.probe.domains), "Greys")
        accuracy, chance = 100 * found.probe.accuracy, 100 * found.probe.chance
        right.set_title(f"domain from features: {accuracy:.0f} % (chance {chance:.0f})", fontsize=8)
    return figure


def _cells(axis: Axes, values: Sequence[Sequence[float]], rows: list[str], columns: list[str], colours: str) -> None:
    axis.imshow(values, cmap=colours, vmin=0, vmax=100, aspect="auto")
    axis.set_xticks(range(len(columns)), [plain(name, 20) for name in columns], fontsize=7)
    if max(map(len, columns)) > 6:
        axis.tick_params("x", rotation=30)
    axis.set_yticks(range(len(rows)), [plain(name, 30) for name in rows], fontsize=7)
    if len(columns) > WRITABLE:
        return
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            if not math.isnan(value):
                colour = "white" if value > 60 else "black"
                axis.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
