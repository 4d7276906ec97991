"""The pictures of the documents: each has a drawing or a command, a page that shows it, and a readable size."""

import re
from pathlib import Path

import pytest
from PIL import Image

from doc_images import BY_HAND, FOLDER, IMAGES, PAGES, FigureOf, image_files, linked
from documents import ROOT
from domainwise.reports.figures import FIGURES

LISTED = {file for name in IMAGES for file in image_files(name)} | BY_HAND.keys()
SHOWN = re.compile(r"images/([\w-]+\.png)")
COLUMN = 880
"""Pixels of a page on GitHub."""


def test_every_picture_is_listed_and_every_listed_one_is_there() -> None:
    assert {file.name for file in FOLDER.glob("*.png")} == LISTED, "make images draws them"


def test_every_picture_is_shown_by_a_page_and_every_shown_one_is_listed() -> None:
    shown = {name for page in PAGES for name in SHOWN.findall(page.read_text(encoding="utf-8"))}
    assert shown == LISTED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_show_the_version_for_light_and_for_dark(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert linked(text) == text, "make images"


def test_a_link_becomes_a_pair() -> None:
    page = 'Before.\n\n![Accuracy of "DAT"](images/methods.png)\n\n![Other](images/other.png)\n'
    pair = linked(page)
    assert 'srcset="images/methods-dark.png"' in pair and 'width="880" src="images/methods-light.png"' in pair
    assert 'alt="Accuracy of &quot;DAT&quot;"' in pair and "![Other](images/other.png)" in pair
    assert linked(pair) == pair


@pytest.mark.parametrize("name", [name for name, drawing in IMAGES.items() if isinstance(drawing, FigureOf)])
def test_figures_are_from_published_records(name: str) -> None:
    drawing = IMAGES[name]
    assert isinstance(drawing, FigureOf)
    assert drawing.figure in FIGURES and (ROOT / "results" / drawing.results / "runs.jsonl.gz").is_file()


@pytest.mark.parametrize("name", sorted(file for name in IMAGES for file in image_files(name)))
def test_pictures_are_sharp_and_small(name: str) -> None:
    with Image.open(FOLDER / name) as picture:
        ground = picture.convert("RGB").getpixel((0, 0))
        assert picture.width <= 2 * COLUMN + 10
    assert (FOLDER / name).stat().st_size < 200_000
    assert ground == ((255, 255, 255) if name.endswith("-light.png") else (13, 17, 23))
