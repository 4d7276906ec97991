"""Names of lines at their ends, in place of a legend."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.reports.style import COLUMNS, TEXT, legend, plain

MOST = 6
"""Names beside lines; of more, their lines can no longer be told from each other by colour and height alone."""
SPACING = 1.3
"""Between the middles of two names, in heights of text."""
AXES_SHARE = 0.6
"""Of a panel's height that its axes have; the rest is titles and labels."""


class End(NamedTuple):
    """The name of a line, its colour, and the height at which it ends."""

    name: str
    colour: str
    y: float


def label_ends(axes: Sequence[Axes], ends: Sequence[End]) -> None:
    """Writes names right of the last axes, moved apart; a legend there if they are more than can be told apart.

    `ends` are those in the last axes; none if some lines of other axes are not in it.
    """
    axis = axes[-1]
    figure = axis.get_figure()
    assert isinstance(figure, Figure)
    rows = -(-len(axes) // COLUMNS)
    gap = SPACING * TEXT / 72 / (AXES_SHARE * figure.get_figheight() / rows)
    if not 0 < len(ends) <= min(MOST, 1 + 1 / gap):
        legend(axes)
        return
    for one, height in zip(ends, spread([_height(axis, one.y) for one in ends], gap), strict=True):
        axis.text(1.02, height, plain(one.name), color=one.colour, va="center", transform=axis.transAxes, weight="bold")


def _height(axis: Axes, y: float) -> float:
    """As a share of the axes' height, on whatever scale, at most at an edge."""
    _, pixel = axis.transData.transform((axis.get_xlim()[1], y))
    return min(max(float(axis.transAxes.inverted().transform((0, pixel))[1]), 0.0), 1.0)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The nearest heights within [0, 1], in the same order, that are at least `gap` apart."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [heights[i] for i in order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    ceiling = 1.0
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    result = [0.0] * len(placed)
    for position, i in enumerate(order):
        result[i] = placed[position]
    return result
