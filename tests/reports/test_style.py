"""The dark version of a picture: drawn once in light colours, and equal to one drawn in dark colours."""

import io
import re
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from domainwise.reports.style import (
    GROUND,
    HAIR,
    IN_THE_DARK,
    INK,
    LIGHT,
    NEARLY_WHITE,
    SETTINGS,
    SOFT,
    content,
    few_ticks,
    grid,
    headline,
    legend,
    light_and_dark,
    line_with_band,
    svg,
)

HASH = re.compile(r'(id="|#)\w{11,}')
"""Names of parts of an SVG, made from their contents."""
BLUE, ORANGE, DOTS = LIGHT[1], LIGHT[2], LIGHT[3]


def everything(shade: Callable[[str], str] = str) -> Figure:
    """One of all elements that figures of this project have, in colours or in their counterparts."""
    with mpl.rc_context({name: shade(value) if isinstance(value, str) else value for name, value in SETTINGS.items()}):
        figure, ((lines, cells), (points, image)) = grid(2, 2, size=2.2)
        line_with_band(lines, [0, 1, 2], [1, 3, 2], [0.4, 0.5, 0.6], shade(BLUE), "line")
        lines.axhline(1.5, color=shade(SOFT), linestyle=":")
        lines.axvspan(0.5, 1, color=shade(HAIR), alpha=0.5, linewidth=0)
        lines.plot([0, 2], [1, 1], color=(shade(ORANGE), 0.3), linewidth=5)
        lines.text(0.1, 2.5, "text", color=shade(ORANGE), weight="bold")
        legend([lines])
        cells.grid(visible=False)
        cells.pcolormesh([[0, 1], [2, 3]], cmap="viridis", edgecolors=cells.get_facecolor(), linewidth=3)
        cells.annotate("1.0", (0.5, 0.5), color=NEARLY_WHITE)
        cells.annotate("2.0", (1.5, 1.5), color="black")
        points.errorbar([1, 20], [2, 3], yerr=0.5, fmt="o", color=shade(BLUE), markerfacecolor=shade(GROUND), capsize=3)
        points.scatter([2, 10], [2, 3], s=80, color=shade(DOTS), alpha=0.4, linewidths=0)
        points.scatter([5], [2.5], s=60, facecolors=shade(GROUND), edgecolors=shade(ORANGE), zorder=3)
        points.set_xscale("log")
        few_ticks(points.xaxis)
        image.imshow(np.full((3, 3, 3), 255, np.uint8))
        image.set(xticks=[], yticks=[], xlabel="picture")
        image.xaxis.label.set_color(shade(INK))
        headline(figure, "All elements")
        figure.supxlabel("caption", color=shade(SOFT))
    return figure


def in_the_dark(colour: str) -> str:
    return IN_THE_DARK.get(colour, colour)


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def png(figure: Figure) -> bytes:
    return content(figure, "png")


def test_the_dark_version_is_the_figure_drawn_in_dark_colours() -> None:
    light, dark = map(pixels, light_and_dark(everything(), png))
    assert (dark == pixels(png(everything(in_the_dark)))).all()
    assert (light == pixels(png(everything()))).all() and (light != dark).any(-1).mean() > 0.5


def test_no_light_colour_is_left_and_none_is_changed_that_has_no_counterpart() -> None:
    light, dark = (HASH.sub("", version.decode()) for version in light_and_dark(everything(), svg))
    for colour in (BLUE, ORANGE, DOTS, INK, SOFT, HAIR, GROUND):
        assert colour in light and colour not in dark and IN_THE_DARK[colour] in dark, colour
    named = re.compile("|".join(IN_THE_DARK))
    assert named.sub(lambda found: IN_THE_DARK[found[0]], light) == dark, "nothing but colours differs"


def test_no_counterpart_is_itself_a_colour_that_has_one() -> None:
    assert not {*IN_THE_DARK} & {*IN_THE_DARK.values()}
