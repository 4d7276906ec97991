"""How figures look: calm axes and the palette of the page."""

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.report.canvas import grid
from domainwise.report.palette import DARK, LIGHT

DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
COLUMNS = 4
"""Panels beside each other."""


INK, SOFT, HAIR, GROUND = "#1d2024", "#5d636d", "#e3e3de", "#ffffff"
IN_THE_DARK = dict(
    zip((*LIGHT, INK, SOFT, HAIR, GROUND), (*DARK, "#e9e9e6", "#a0a6b0", "#2e323a", "#15171b"), strict=True)
)
"""What every colour becomes on a dark page."""
SETTINGS: Any = {
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.facecolor": GROUND,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": HAIR,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": GROUND,
}
ANY_GROUND: Any = dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#7f858f"
) | {"figure.facecolor": "none", "axes.facecolor": "none"}
"""Readable on white and on black."""


def panels(titles: Sequence[str], size: float = 2.5) -> tuple[Figure, list[Axes]]:
    """A row of axes, or several, with these titles."""
    columns = min(COLUMNS, len(titles))
    rows = -(-len(titles) // columns)
    figure, axes = grid(rows, columns, size=size, margins=(0.8, 0.5))
    flat = [axis for line in axes for axis in line]
    for axis in flat[len(titles) :]:
        axis.remove()
    for axis, title in zip(flat, titles, strict=False):
        axis.set_title(title)
    return figure, flat[: len(titles)]


def line(axis: Axes, x: Sequence[float], y: Sequence[float], colour: str, label: str, dash: int = 0) -> None:
    axis.plot(x, y, color=colour, label=label, linestyle=DASHES[dash % len(DASHES)])


def line_with_band(
    axis: Axes, x: Sequence[float], mean: Sequence[float], half: Sequence[float], colour: str, label: str, dash: int = 0
) -> None:
    """A line and what lies within `half` of it."""
    line(axis, x, mean, colour, label, dash)
    low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def legend(figure: Figure, axis: Axes) -> None:
    """One for all panels, below them, in as many columns as fit. What all names end with in brackets is left out."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        if len({label.partition(" (")[2] for label in labels}) == 1:
            labels = [label.partition(" (")[0] for label in labels]
        fitting = int(figure.get_figwidth() / (0.6 + 0.08 * max(map(len, labels))))
        figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(fitting, len(labels))))


def svg(figure: Figure) -> bytes:
    """For a page: text stays text, and nothing in it changes from one time to the next."""
    out = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "domainwise", "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", dpi=150, metadata={"Date": None})
    return out.getvalue()


def darkened(picture: bytes) -> bytes:
    """The same SVG in the colours of a dark page."""
    named = re.compile(b"|".join(re.escape(colour.encode()) for colour in IN_THE_DARK))
    return named.sub(lambda colour: IN_THE_DARK[colour[0].decode()].encode(), picture)
