"""Draws the pictures of the documents: `make images`, or `python tools/doc_images.py NAME ...` for some of them.

Every name of IMAGES is a pair docs/images/NAME-light.png and NAME-dark.png. Most are drawn from the records in
results/; a few need trained models: their runs are those of `domainwise demo`, trained into runs/images once. Files of
BY_HAND need a GPU or a browser.

In the pages, `![words](images/NAME.png)` alone on a line becomes a <picture> that shows the version for light or dark
pages; docs/conf.py does the same for the site.
"""

import html
import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from dat_picture import dat_picture
from domainwise.analysis import attention
from domainwise.analysis.perturbations import measure
from domainwise.core import files
from domainwise.core.errors import unknown
from domainwise.engine.restore import TrainedRun, restore
from domainwise.models.training import train
from domainwise.reports import style
from domainwise.reports.figures import draw
from domainwise.reports.pictures import heatmap_grid, perturbation_figure
from domainwise.sweeps.collection import Collection
from domainwise.sweeps.domainbed import collect_results

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images"
RUNS = ROOT / "runs" / "images"
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
DOTS = 200
"""Per inch: twice the pixels of GitHub's column of 880."""
COLOURS = 256
"""Of a file's palette: a third of the bytes, and no difference to the eye."""
LINK = re.compile(r"^!\[(?P<words>[^\]]*)\]\((?P<folder>[^)\s]*images/)(?P<name>[\w-]+)\.png\)$", re.M)
PAIR = """\
<picture>
  <source media="(prefers-color-scheme: dark)" srcset="{folder}{name}-dark.png">
  <img alt="{words}" width="{width}" src="{folder}{name}-light.png">
</picture>"""
BY_HAND = {
    "pacs-heatmaps.png": "make heatmaps-pacs",
    "report-light.png": "domainwise report results/demo --out page.html, then chromium --headless --hide-scrollbars "
    "--force-device-scale-factor=2 --window-size=880,1020 --screenshot=FILE page.html",
    "report-dark.png": "the same, with --blink-settings=preferredColorScheme=0",
}
"""{file: how it is made}."""


@dataclass(frozen=True)
class FigureOf:
    """A figure of `domainwise figure`, from the records of an experiment."""

    figure: str
    results: str
    algorithms: Sequence[str] = ()
    rule: str | None = None

    def __call__(self) -> Figure:
        folder = ROOT / "results" / self.results
        return draw(self.figure, folder, records(folder), algorithms=self.algorithms, rule=self.rule).figure


@cache
def records(folder: Path) -> Collection:
    return collect_results(folder, partial=False)


@cache
def trained(algorithm: str, unseen: str) -> TrainedRun:
    """The demo's run of this algorithm and unseen domain in its first trial, trained if it is not in runs/images."""
    wanted = (algorithm, (unseen,), 0)
    runs = records(ROOT / "results" / "demo").runs
    run = next(run for run in runs if (run.algorithm, run.test_domains, run.trial) == wanted)
    train(run, RUNS, device="cpu")
    return restore(RUNS / run.id)


def explanation() -> Figure:
    one = trained("DAT", "scene4")
    return dat_picture(one.environments, one.run, one.algorithm.get_buffer("delta"))


def perturbations() -> Figure:
    return perturbation_figure(measure(trained("DAT", "scene4")))


def heatmaps() -> Figure:
    models = [trained(algorithm, "scene1") for algorithm in ("ERM", "UAT", "DAT")]
    rows = attention.sample_rows(models[0].environments, "scene1", 1, 4)
    return heatmap_grid(attention.compare_attention(models, rows))


IMAGES: dict[str, Callable[[], Figure]] = {
    "dat": explanation,
    "demo": FigureOf("domains", "demo", ("ERM", "UAT", "DAT")),
    "perturbations": perturbations,
    "heatmaps": heatmaps,
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


def image_files(name: str) -> tuple[str, str]:
    """Of the light and of the dark version."""
    return f"{name}-light.png", f"{name}-dark.png"


def png(figure: Figure) -> bytes:
    """With a palette and without dates: the same figure gives the same bytes."""
    drawn, out = io.BytesIO(style.content(figure, "png", DOTS)), io.BytesIO()
    Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(out, format="png", optimize=True)
    return out.getvalue()


def linked(text: str) -> str:
    """A page whose links to pictures of IMAGES show the version for the reader's page."""

    def pair(link: re.Match[str]) -> str:
        if link["name"] not in IMAGES:
            return link[0]
        with Image.open(FOLDER / f"{link['name']}-light.png") as picture:
            width = picture.width // 2
        return PAIR.format(folder=link["folder"], name=link["name"], words=html.escape(link["words"]), width=width)

    return LINK.sub(pair, text)


def main(names: Sequence[str]) -> None:
    for name in names or IMAGES:
        if name not in IMAGES:
            raise unknown("picture", name, IMAGES)
        for file, data in zip(image_files(name), style.light_and_dark(IMAGES[name](), png), strict=True):
            files.write(FOLDER / file, data)
            print(f"docs/images/{file}: {len(data) // 1000} kB")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (with_pairs := linked(text)) != text:
            files.write(page, with_pairs)
            print(f"{page.relative_to(ROOT)}: links to pictures")


if __name__ == "__main__":
    main(sys.argv[1:])
