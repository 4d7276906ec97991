"""Pictures embedded in the page as data addresses: a light and, where it matters, a dark version."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

from domainwise.core.errors import UserError
from domainwise.reports.figures import FIGURES, Request
from domainwise.reports.style import SETTINGS, light_and_dark, svg
from domainwise.sweeps.tables import Group

ABLATIONS = {
    "memory": "Memorisation",
    "draws": "Accuracy against the number of draws",
    "eps-alpha": "Radius and step size",
    "radius": "Radius",
    "norms": "The two norms",
    "batch-size": "Batch size",
    "penalties": "Penalties over time",
}
"""The figures a page shows where there are runs for them; it draws curves and methods itself."""


@dataclass(frozen=True)
class Picture:
    """An image as the page holds it."""

    title: str
    caption: str
    sentences: Sequence[str]
    light: str
    dark: str = ""


def ablations(folder: Path, group: Group, rule: str) -> list[Picture]:
    """The figures for which an experiment has the runs."""
    pictures = []
    for name, heading in ABLATIONS.items():
        request = Request(folder, group, rule)
        try:
            with mpl.rc_context(SETTINGS):
                drawing = FIGURES[name](request)
        except UserError:
            continue
        light, dark = (address(version, "image/svg+xml") for version in light_and_dark(drawing.figure, svg))
        pictures.append(Picture(f"{heading}: {drawing.title}", drawing.caption, drawing.sentences, light, dark))
    return pictures


def address(data: bytes, kind: str) -> str:
    """An address that holds the data itself."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
