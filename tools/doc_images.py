"""Draws the pictures of the documents: `make images`, or `python tools/doc_images.py NAME ...` for some of them.

Every picture of IMAGES is a pair docs/images/NAME-light.png and NAME-dark.png, drawn from the records in results/. Those of
FROM_RUNS need trained models or a browser and are made by the command beside them. In the pages, `![words](images/NAME.png)`
becomes a <picture> that shows the right one of the two; docs/conf.py does the same for the site.
"""

import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from domainwise.reports import style
from domainwise.reports.figures import draw
from domainwise.sweeps.collection import Collection
from domainwise.sweeps.domainbed import collect_results

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images"
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
DOTS = 200
"""Per inch: twice the pixels of GitHub's column of 880."""
COLOURS = 256
"""Of a file's palette: a third of the bytes, and nothing that an eye sees."""
LINK = re.compile(r"^!\[(?P<words>[^\]]*)\]\((?P<folder>[^)\s]*images/)(?P<name>[\w-]+)\.png\)$", re.M)


@dataclass(frozen=True)
class FigureOf:
    """A figure of `domainwise figure`, from the records of an experiment."""

    figure: str
    results: str
    algorithms: Sequence[str] = ()
    rule: str | None = None

    def __call__(self, *, dark: bool) -> Figure:
        folder = ROOT / "results" / self.results
        options = {"algorithms": self.algorithms, "rule": self.rule, "dark": dark}
        return draw(self.figure, folder, read(folder), **options).figure


IMAGES: dict[str, Callable[..., Figure]] = {
    "demo": FigureOf("domains", "demo", ("ERM", "UAT", "DAT")),
    "methods": FigureOf("methods", "backgrounds"),
    "batch-size": FigureOf("batch-size", "backgrounds-batch"),
    "eps-alpha": FigureOf("eps-alpha", "backgrounds-radius"),
    "penalties": FigureOf("penalties", "theory"),
    "cmnist-curves": FigureOf("curves", "cmnist", ("ERM", "DAT")),
    "cmnist-oracle": FigureOf("curves", "cmnist", ("ERM", "DAT"), "oracle"),
    "cmnist-draws": FigureOf("draws", "cmnist"),
    "cmnist-memory": FigureOf("memory", "cmnist-noise"),
    "pacs-curves": FigureOf("curves", "pacs", ("ERM", "UAT", "DAT")),
}
"""{name: the function that draws it}."""
_read: dict[Path, Collection] = {}


def read(folder: Path) -> Collection:
    """The records of an experiment, read once."""
    if folder not in _read:
        _read[folder] = collect_results(folder, partial=False)
    return _read[folder]


def png(figure: Figure) -> bytes:
    """With a palette, without dates: the same figure gives the same bytes."""
    drawn, out = io.BytesIO(), io.BytesIO()
    with style.any_script():
        figure.savefig(drawn, format="png", dpi=DOTS)
    picture = Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(out, format="png", optimize=True, dpi=(2 * 72, 2 * 72))
    return out.getvalue()


def main(names: Sequence[str]) -> None:
    for name in names or IMAGES:
        for theme in ("light", "dark"):
            data = png(IMAGES[name](dark=theme == "dark"))
            (FOLDER / f"{name}-{theme}.png").write_bytes(data)
            print(f"{name}-{theme}.png: {len(data) // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
