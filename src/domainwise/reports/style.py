"""The look of every figure: colours, sizes, axes, lines, labels, titles, captions, and files by their suffix.

Every figure is drawn on white; `light_and_dark` also gives its version for a dark page.
"""

import io
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import is_color_like, to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter

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
LEGEND_ROWS = 14
INK, SOFT, HAIR, GROUND = "#1d2024", "#5d636d", "#e3e3de", "#ffffff"
RIGHT, WRONG = "#1a7f37", "#c62828"
"""Of predictions."""
NEARLY_WHITE = "#fefefe"
"""Text in a dark cell: stays so on a dark page, unlike the ground."""
IN_THE_DARK = dict(
    zip(
        (*LIGHT, INK, SOFT, HAIR, GROUND, RIGHT, WRONG),
        (*DARK, "#e9e9e6", "#a0a6b0", "#2e323a", "#0d1117", "#4fcf7a", "#ff8a80"),
        strict=True,
    )
)
"""Every colour, and its counterpart on a dark page."""
COLOURED = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")
"""Properties of matplotlib's elements that are colours."""
WIDTH = 8.8
"""Inches of every figure, so that their texts have one size on a page: 100 pixels each in a column of 880."""
TEXT, SMALL, TITLE = 9.0, 8.0, 11.0
"""Sizes of text in points: labels, the smallest, and the title of a figure."""
SETTINGS: Any = {
    "font.size": TEXT,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.labelsize": TEXT,
    "axes.titlesize": TEXT,
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
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "figure.facecolor": GROUND,
    "figure.titlesize": TITLE,
    "figure.titleweight": "bold",
    "figure.labelsize": SMALL,
}
FORMATS = ("png", "pdf", "svg")
EDGE = 0.008
"""Between text and the sides of a figure, as a share of its width."""
FILLED = 0.96
"""Of a figure's width by lines of text, at most: they are a little wider in other resolutions."""
TIMELESS: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""Metadata that leaves out the time of writing."""


in_style = mpl.rc_context(SETTINGS)
"""Decorator: a function that draws with these settings."""


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


def panels(titles: Iterable[object], height: float = 2.6) -> tuple[Figure, list[Axes]]:
    """A row of axes, or several, of this height in inches, with these titles."""
    names = list(map(str, titles))
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    flat = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axis in flat[len(names) :]:
        axis.remove()
    for axis, title in zip(flat, names, strict=False):
        axis.set_title(plain(title))
    return figure, flat[: len(names)]


def few_ticks(axis: Axis) -> None:
    """On a logarithmic axis: at 1 and 3 times powers of ten, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def line(axis: Axes, x: Sequence[float], y: Sequence[float], colour: str, label: str, dash: int = 0) -> None:
    axis.plot(x, y, color=colour, label=label, linestyle=DASHES[dash % len(DASHES)])


def line_with_band(
    axis: Axes, x: Sequence[float], mean: Sequence[float], half: Sequence[float], colour: str, label: str, dash: int = 0
) -> None:
    """A line and the band within `half` of it."""
    line(axis, x, mean, colour, label, dash)
    low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def legend(axes: Sequence[Axes]) -> None:
    """One for all panels, right of the last, in as many columns as its height asks for."""
    handles = {name: handle for axis in axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    columns = -(-len(handles) // LEGEND_ROWS) or 1
    names = [plain(name) for name in handles]
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0}
    axes[-1].legend(list(handles.values()), names, ncols=columns, **place)


def headline(figure: Figure, text: str) -> None:
    """A title over the whole figure, in as many lines as its width asks for."""
    fit(figure, figure.suptitle(text, x=EDGE, ha="left"))


def footnote(figure: Figure, text: str) -> None:
    """A caption below the whole figure, in as many lines as its width asks for."""
    fit(figure, figure.supxlabel(text, x=EDGE, ha="left", color=SOFT))


def fit(figure: Figure, artist: Text) -> None:
    """Breaks a text into lines that fit the width of its figure."""
    text = artist.get_text()
    room = FILLED * figure.bbox.width
    with any_script():
        wide = artist.get_window_extent().width
        columns = min(len(text), int(len(text) * room / wide)) if wide > room else len(text)
        while columns > 1 and artist.get_window_extent().width > room:
            artist.set_text(textwrap.fill(text, columns))
            columns -= 1


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


@in_style
def light_and_dark(figure: Figure, write: Callable[[Figure], bytes]) -> tuple[bytes, bytes]:
    """What `write` makes of a figure, and of the same with the colours of a dark page, which the figure then has."""
    light = write(figure)
    figure.set_layout_engine("none")  # the layout of the first drawing is that of both
    for artist in figure.findobj():
        for name in COLOURED:
            if hasattr(artist, f"get_{name}"):
                getattr(artist, f"set_{name}")(_in_the_dark(getattr(artist, f"get_{name}")()))
    return light, write(figure)


def _in_the_dark(colour: Any) -> Any:
    """The counterpart of a colour, as opaque as it, or of each of several; a colour without one stays."""
    if not is_color_like(colour):
        return [_in_the_dark(one) for one in colour]
    dark = IN_THE_DARK.get(to_hex(colour))
    return colour if dark is None else to_rgba(dark, to_rgba(colour)[3])


def save(figure: Figure, path: Path, *, dark: bool = False) -> None:
    """Writes a picture in the format of the file's suffix."""
    write = partial(content, form=check_format(path))
    files.write(path, light_and_dark(figure, write)[1] if dark else write(figure))


@in_style
def content(figure: Figure, form: str, dpi: int = 150) -> bytes:
    """A file without dates or random names: the same figure gives the same bytes.

    From the canvas itself: `savefig` goes through all elements twice, first without drawing them.
    """
    out = io.BytesIO()
    figure.set_dpi(dpi)
    write = getattr(get_registered_canvas_class(form)(figure), f"print_{form}")
    with mpl.rc_context({"svg.hashsalt": "domainwise", "pdf.fonttype": 42}), any_script():
        write(out, metadata=TIMELESS[form])
    return out.getvalue()


def svg(figure: Figure) -> bytes:
    """For a page: text stays text."""
    with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        return content(figure, "svg")
