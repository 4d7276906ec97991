"""What a reader of the documents relies on: links lead somewhere, pictures have words, a page says which question it
answers, the README is short."""

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from documents import PAGES, ROOT, anchors, first_paragraph, links

LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md"]
README = ROOT / "README.md"
WORDS = 900
"""Of the README, at most: one screen of why and how."""


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page):
        file, _, anchor = link.target.partition("#")
        if urlsplit(link.target).scheme:
            continue
        target = page.parent / file if file else page
        assert target.exists(), f"{link.target}: no such file"
        if anchor:
            assert anchor in anchors(target), f"{link.target}: no such heading among {sorted(anchors(target))}"


def test_every_benchmark_record_is_there_and_says_how_it_was_made() -> None:
    """The README of the folder has a line for each file, with the script that wrote it."""
    folder = ROOT / "results" / "bench"
    lines = (folder / "README").read_text(encoding="utf-8").splitlines()
    assert sorted(line.partition(": ")[0] for line in lines) == sorted({p.name for p in folder.iterdir()} - {"README"})
    scripts = re.findall(r"benchmarks/\w+\.py", "\n".join(lines))
    assert scripts and all((ROOT / script).is_file() for script in scripts)


SERVED = "127.0.0.1:8000"
"""Where `domainwise serve` answers."""


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_addresses_are_complete(page: Path) -> None:
    addresses = re.findall(r"[a-z]+://[^\s)>}\"`]+", page.read_text(encoding="utf-8"))
    for address in addresses:
        parts = urlsplit(address)
        if parts.netloc == SERVED:
            continue
        assert parts.scheme in ("http", "https") and re.fullmatch(r"([\w-]+\.)+[a-z]{2,}", parts.netloc), address


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_have_words(page: Path) -> None:
    for link in links(page):
        assert len(link.text) > (10 if link.is_picture and link.text != "(source)" else 1), link.target


@pytest.mark.parametrize("page", [page for page in PAGES if page != README], ids=lambda page: page.stem)
def test_a_page_says_first_which_question_it_answers(page: Path) -> None:
    question = re.match(r"[A-Z][^?]*\?(?= |$)", first_paragraph(page))
    assert question and not re.search(r"[.!] ", question[0]), f"begin with a question: {first_paragraph(page)[:80]}"


def test_the_readme_is_short() -> None:
    shown = re.sub(r"<!--.*?-->", "", README.read_text(encoding="utf-8"), flags=re.S)
    assert len(shown.split()) < WORDS


def test_the_readme_names_the_lowest_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch,) = (line.partition(">=")[2] for line in project["dependencies"] if line.startswith("torch>="))
    python = project["requires-python"].removeprefix(">=")
    line = f"Python {python} or newer · PyTorch {torch} or newer · CPU or NVIDIA GPU · {project['license']} licence"
    assert line in README.read_text(encoding="utf-8").splitlines()


def test_the_readme_has_no_number_inside_a_sentence() -> None:
    """Numbers that are measured stand in blocks of their own, which are generated whole."""
    for place in re.finditer(r"<!-- results: .*?<!-- /results -->", README.read_text(encoding="utf-8"), re.S):
        assert re.search(r"-->\n\n.*\n\n<!--", place[0], re.S), place[0]
