"""What all figures share: grids of axes, images without ticks, files by their suffix."""

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from domainwise.core import files
from domainwise.core.errors import UserError

FORMATS = ("png", "pdf", "svg")
TIMELESS: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""What a format writes of its time of making, left out."""


def grid(
    rows: int,
    columns: int,
    size: float = 1.0,
    margins: tuple[float, float] = (1.2, 0.6),
    widths: Sequence[float] | None = None,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of cells, square unless told their relative widths, with room for labels and a title."""
    figure = Figure(figsize=(size * columns + margins[0], 1.05 * size * rows + margins[1]), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, width_ratios=widths)
    return figure, axes.tolist()


def colours(image: Tensor) -> Tensor:
    """An image [C, H, W] of one, two (as red and green) or three channels as [H, W, 3]."""
    image = image.cpu()
    if image.shape[0] == 1:
        image = image.expand(3, -1, -1)
    elif image.shape[0] == 2:
        image = torch.cat([image, torch.zeros_like(image[:1])])
    return image.permute(1, 2, 0)


def show(axis: Axes, image: Tensor, title: str = "") -> None:
    """An image [C, H, W] in [0, 1], without ticks."""
    axis.imshow(colours(image).numpy())
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=8)


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
    """Within it, names in a script that the font lacks are drawn as boxes without a word."""
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


def writable_picture(path: Path, argument: str = "out") -> Path:
    """A name and a place that a picture can have, found before any work."""
    check_format(path, argument)
    return files.writable_file(path, argument)


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Without dates or random names: the same figure gives the same bytes."""
    form = check_format(path)
    fixed = mpl.rc_context({"svg.hashsalt": "domainwise", "pdf.fonttype": 42})
    with files.atomic(path) as file, fixed, any_script():
        figure.savefig(file, format=form, dpi=dpi, metadata=TIMELESS[form])
