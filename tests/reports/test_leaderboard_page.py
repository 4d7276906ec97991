"""The page of published folders: a leaderboard of each under every rule, and its records to download."""

import base64
import gzip
import json
import re
from html import unescape
from pathlib import Path

import pytest

from browser import Browser, needs_chromium
from commands import Command
from domainwise.cli import main
from domainwise.reports.page.write import write_page
from domainwise.reports.publish import publish
from domainwise.sweeps.plan_run import plan_run
from handmade_records import COLOURS, colours, write_done_run, write_sweep

NASTY = "<img src=x onerror=alert(1)>&\"'"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two published folders: ERM and DAT on ColoredMNIST, DAT clearly ahead; and two seeds of ERM, CORAL and DAT."""
    folder = tmp_path_factory.mktemp("work")
    publish(write_sweep(folder / "runs"), folder / "results" / "cmnist")
    for seed in (0, 1):
        for trial in range(3):
            for i, unseen in enumerate(("scene1", "scene2", "scene3", "scene4")):
                for algorithm, accuracy in (("ERM", 0.5), ("CORAL", 0.5 + 0.1 * (i - 1)), ("DAT", 0.7 - 0.4 * seed)):
                    facts = {"trial": trial, "seed": seed, "steps": 21, "evaluate_every": 20}
                    run = plan_run("BackgroundDigits", algorithm, [unseen], **facts)
                    write_done_run(folder / "seeds", run, accuracy, seconds=600.0)
    publish(folder / "seeds", folder / "results" / "seeds")
    (folder / "results" / "notes").mkdir()
    (folder / "results" / "README.md").write_text("Records")
    return folder / "results"


@pytest.fixture(scope="module")
def page(results: Path) -> Path:
    return write_page(results)[0]


def words(text: str) -> str:
    """Without tags, one space between words."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text.replace("<small> ±", " ±"))).split())


def part(page: Path, begin: str, end: str) -> str:
    text = page.read_text()
    return words(text[text.index(begin) : text.index(end, text.index(begin))])


def test_a_section_says_what_a_method_reaches_and_what_its_runs_took(page: Path) -> None:
    text = page.read_text()
    section = text[text.index('<section id="experiment-1"') : text.index('<section id="experiment-2"')]
    by_rule = re.findall(r'<div data-rule="([\w-]+)">(.*?)</table>', section, re.DOTALL)
    assert [rule for rule, _ in by_rule] == ["training-domain", "oracle", "worst-domain"]
    for _, table in by_rule:
        first, second = (words(row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:])
        assert first.startswith("DAT 61.0 ± 1.0") and second.startswith("ERM 51.0 ± 1.0")
        assert "+10.0 ± 0.0 clearly ahead 60 s" in first and first.endswith("2 x 2 x 21")
    said = words(section)
    assert "ColoredMNIST cmnist" in said and "24 runs" in said and "Clear: p at most 0.05" in said


def test_the_overview_names_who_is_clearly_ahead(page: Path) -> None:
    """In the second folder DAT is clearly ahead with seed 0 and clearly behind with seed 1, CORAL is not clear."""
    overview = part(page, 'aria-label="Overview by training-domain', "</table>")
    assert "cmnist ColoredMNIST DAT +10.0 0 0" in overview
    assert "seeds BackgroundDigits DAT in 1 of 2 tables 2 1" in overview


def test_the_records_are_in_the_page(page: Path, results: Path) -> None:
    text = page.read_text()
    found = dict(re.findall(r'download="(\w+)-runs.jsonl.gz" href="data:application/gzip;base64,([^"]+)"', text))
    assert {name: base64.b64decode(data) for name, data in found.items()} == {
        name: (results / name / "runs.jsonl.gz").read_bytes() for name in ("cmnist", "seeds")
    }


def test_the_same_records_give_the_same_page(page: Path, results: Path, tmp_path: Path) -> None:
    assert write_page(results, tmp_path / "again.html")[0].read_text() == page.read_text()


def test_the_command_says_how_many_runs_the_page_has(
    results: Path, tmp_path: Path, domainwise: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    told = domainwise("report", results, "--out", tmp_path / "page.html", "--json")
    assert told.status == 0 and json.loads(told.out)["runs"] == 24 + 72
    text = (tmp_path / "page.html").read_text()
    assert "2 experiments · 96 runs · 3 algorithms" in text
    assert domainwise("report", results, "--out", tmp_path / "dat.html", "--baseline", "DAT").status == 0
    assert "−10.0 ± 0.0" in (tmp_path / "dat.html").read_text()
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    refused = domainwise("report", tmp_path / "empty")
    assert refused.status == 2 and "published" in refused.err and len(refused.err.splitlines()) == 1


def test_damaged_records_are_named(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results" / "cmnist"
    folder.mkdir(parents=True)
    lines = gzip.decompress((results / "cmnist" / "runs.jsonl.gz").read_bytes())
    (folder / "runs.jsonl.gz").write_bytes(gzip.compress(lines.replace(b'"steps"', b'"step"', 1)))
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path / "results")])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and "runs.jsonl.gz, line 1" in error and len(error.splitlines()) == 1


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SHOWN = "[...document.querySelectorAll('.standings, .overview')].filter(e => e.getClientRects().length).length"


@needs_chromium
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_without_complaint_or_overflow(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.complaints == [] and browser.evaluate(OVERFLOW) == 0
    right = "[...document.querySelectorAll('.standings')][0].tHead.rows[0].cells[2].getBoundingClientRect().right"
    assert browser.evaluate(right) <= width


@needs_chromium
def test_every_rule_shows_its_own_tables_alone(browser: Browser, page: Path) -> None:
    browser.open(page)
    for rule in ("oracle", "worst-domain", "training-domain"):
        browser.click(f"label:has(#rule-{rule})")
        assert browser.evaluate(SHOWN) == 1 + 3


@needs_chromium
def test_a_download_holds_the_records(browser: Browser, page: Path, results: Path) -> None:
    browser.open(page)
    link = "document.querySelector('.download')"
    bytes_ = browser.evaluate(f"fetch({link}.href).then(r => r.arrayBuffer()).then(b => b.byteLength)")
    assert bytes_ == (results / "cmnist" / "runs.jsonl.gz").stat().st_size
    assert browser.evaluate(f"{link}.download") == "cmnist-runs.jsonl.gz" and browser.complaints == []


@needs_chromium
def test_names_of_folders_are_text(browser: Browser, tmp_path: Path) -> None:
    for unseen in COLOURS:
        write_done_run(tmp_path / "runs", colours("ERM", unseen), 0.5)
    publish(tmp_path / "runs", tmp_path / "results" / NASTY)
    path = write_page(tmp_path / "results")[0]
    browser.open(path, width=390)
    assert browser.complaints == [] and browser.evaluate("document.images.length") == 0
    assert NASTY in browser.evaluate("document.querySelector('h2').innerText")
    assert browser.evaluate("document.querySelector('.download').download") == f"{NASTY}-runs.jsonl.gz"
