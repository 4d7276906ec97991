"""The look of every figure: colours, axes, lines, legends, titles, and files by their suffix."""

import io
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.protocol.selection import Method

LIGHT = ("#6b7280", "#0072b2", "#d55e00", "#00855f", "#b3558f", "#b97f00", "#3a93cf", "#6d53a8")
DARK = ("#a3aab5", "#56b4e9", "#ff8a4c", "#35c79c", "#e39ac4", "#f0b429", "#9cc4f5", "#b9a0ec")
"""On white and on black, distinct for colour-blind readers; the neutral one first."""
NEUTRAL, FIRST = "ERM", "DAT"
"""These always get the neutral and the first colour."""
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
COLUMNS = 4
"""Panels beside each other."""
INK, SOFT, HAIR, GROUND = "#1d2024", "#5d636d", "#e3e3de", "#ffffff"
IN_THE_DARK = dict(
    zip((*LIGHT, INK, SOFT, HAIR, GROUND), (*DARK, "#e9e9e6", "#a0a6b0", "#2e323a", "#15171b"), strict=True)
)
"""Every colour, and its counterpart on a dark page."""
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
FORMATS = ("png", "pdf", "svg")
TIMELESS: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""Metadata that leaves out the time of writing."""


def slots(methods: Iterable[Method]) -> dict[Method, tuple[int, int]]:
    """{method: (colour, dash)}: colours that run out come again with other dashes.

    Of an algorithm searched in several spaces, the variant with the shortest name has the algorithm's own colour.
    """
    names = list(dict.fromkeys(methods))
    neutral, first = (
        min((name for name in names if name.algorithm == known), key=lambda name: len(str(name)), default=Method(known))
        for known in (NEUTRAL, FIRST)
    )
    rest = sorted((name for name in names if name != neutral), key=lambda name: name != first)
    colours = len(LIGHT) - 1
    return {neutral: (0, 0)} | {name: (1 + i % colours, i // colours) for i, name in enumerate(rest)}


def grid(
    rows: int,
    columns: int,
    size: float = 1.0,
    margins: tuple[float, float] = (1.2, 0.6),
    widths: Sequence[float] | None = None,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of cells, square unless relative widths are given, with room for labels and a title."""
    figure = Figure(figsize=(size * columns + margins[0], 1.05 * size * rows + margins[1]), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, width_ratios=widths)
    return figure, axes.tolist()


def labels(methods: Iterable[Method]) -> dict[Method, str]:
    """The names of methods in a legend: without the variant where all have the same."""
    names = list(methods)
    alike = len({name.variant for name in names}) == 1
    return {name: str(replace(name, variant="") if alike else name) for name in names}


def panels(titles: Iterable[object], size: float = 2.5) -> tuple[Figure, list[Axes]]:
    """A row of axes, or several, with these titles."""
    names = list(map(str, titles))
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure, axes = grid(rows, columns, size=size, margins=(0.8, 0.5))
    flat = [axis for line in axes for axis in line]
    for axis in flat[len(names) :]:
        axis.remove()
    for axis, title in zip(flat, names, strict=False):
        axis.set_title(title)
    return figure, flat[: len(names)]


def line(axis: Axes, x: Sequence[float], y: Sequence[float], colour: str, label: str, dash: int = 0) -> None:
    axis.plot(x, y, color=colour, label=label, linestyle=DASHES[dash % len(DASHES)])


def line_with_band(
    axis: Axes, x: Sequence[float], mean: Sequence[float], half: Sequence[float], colour: str, label: str, dash: int = 0
) -> None:
    """A line and the band within `half` of it."""
    line(axis, x, mean, colour, label, dash)
    low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def legend(figure: Figure, axis: Axes) -> None:
    """One for all panels, below them, in as many columns as fit."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        fitting = int(figure.get_figwidth() / (0.6 + 0.08 * max(map(len, labels))))
        figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(fitting, len(labels))))


def headline(figure: Figure, text: str, size: float | None = None) -> None:
    """A title over the whole figure, in as many lines as its width asks for."""
    title = figure.suptitle(text, fontsize=size)
    with any_script():
        for columns in range(len(text) - 1, 0, -1):
            if title.get_window_extent().width <= 0.96 * figure.bbox.width:
                break
            title.set_text(textwrap.fill(text, columns))


@contextmanager
def any_script() -> Iterator[None]:
    """Context manager: characters that the font lacks are drawn as boxes without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def plain(name: str, most: int = 40) -> str:
    """A name, as of a folder, as text in a figure: cut, and with dollar signs that are not mathematics."""
    return (name if len(name) <= most else f"{name[: most - 1]}…").replace("$", r"\$")


def check_format(path: Path, argument: str = "out") -> str:
    """The format that a file's suffix asks for."""
    form = path.suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise UserError(f"{path}: a picture's name ends in .png, .pdf or .svg", argument=argument)
    return form


def writable_picture(path: Path) -> Path:
    """The path, once it is known that a picture can be written there."""
    check_format(path)
    return files.writable_file(path)


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Without dates or random names: the same figure gives the same bytes."""
    form = check_format(path)
    fixed = mpl.rc_context({"svg.hashsalt": "domainwise", "pdf.fonttype": 42})
    with files.atomic(path) as file, fixed, any_script():
        figure.savefig(file, format=form, dpi=dpi, metadata=TIMELESS[form])


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
