"""The page of a folder of runs: what it says, from records made by hand, and how it behaves in a real browser."""

import json
import math
import os
import re
import shlex
from dataclasses import replace
from html import escape as html_escape
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, needs_chromium
from domainwise.cli import main, sweep
from domainwise.core.errors import UserError
from domainwise.engine import train
from domainwise.models import fit  # noqa: F401 (it keeps the `train` it finds, so must find it before a test replaces that)
from domainwise.protocol.checked_lines import unseal
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Column, Method
from domainwise.protocol.statistics import Estimate, estimate
from domainwise.reports.learning_curves import LearningCurve
from domainwise.reports.page import drawing
from domainwise.reports.page.drawing import AxisScale, Bar, panels
from domainwise.reports.page.write import write_page
from domainwise.sweeps.collection import collect
from domainwise.sweeps.commands import sweep_command, train_command
from domainwise.sweeps.domainbed_export import export_domainbed
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.tables import tables
from handmade_records import COLOURS, a_measured_run

NASTY = "<script>alert('x')</script>&\"'</svg>$\x1b\x01"
SHOWN_NASTY = NASTY.replace("\x1b", "␛").replace("\x01", "␁")


def keep(folder: Path, run: Run, top: float, ended: str = "done") -> None:
    """A run that learns up to `top` and, having been judged five times, gets worse on the unseen domain."""
    kept = RunFolder(folder, run)
    kept.create()
    rows = []
    for i, step in enumerate(range(0, run.steps, run.evaluate_every)):
        unseen, seen = top * (0.2 + 0.25 * i - 0.04 * i**2), 0.5 + 0.05 * min(i, 2)
        values = {(domain, "out"): seen for domain in run.train_domains}
        for domain in (*run.validation_domains, *run.test_domains):
            values |= {(domain, "in"): unseen, (domain, "out"): unseen}
        rows += [Record(run.id, step, *part, value, 1.0, float(step)) for part, value in values.items()]
    kept.append(rows)
    if ended:
        kept.append([Status(run.id, run.steps - 1, "done", "")])


def colours(algorithm: str, unseen: str, **facts: Any) -> Run:
    return plan_run("ColoredMNIST", algorithm, [unseen], **{"steps": 41, "evaluate_every": 10, **facts})


def search(folder: Path, draws: int = 1, algorithms: tuple[str, ...] = ("ERM", "IRM", "DAT")) -> Path:
    for algorithm in algorithms:
        for i, unseen in enumerate(COLOURS):
            for draw in range(draws):
                for trial in range(2):
                    top = 0.9 + 0.1 * math.sin(len(algorithm) + ord(algorithm[0]) + i + trial / 3 + draw)
                    keep(folder, colours(algorithm, unseen, draw=draw, trial=trial), top)
    return folder


def page(folder: Path) -> str:
    return write_page(folder)[0].read_text()


def plain(text: str) -> str:
    """Without tags, one space between words."""
    return " ".join(re.sub(r"<[^>]+>", " ", text.replace("<small> ±", " ±")).split())


def test_every_number_of_every_table_is_in_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = plain(page(search(tmp_path, draws=2)))
    with pytest.raises(SystemExit):
        main(["table", str(tmp_path), "--selection", "all", "--json"])
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert {table["selection"] for table in tables} == {"training-domain", "oracle", "worst-domain"}
    for table in tables:
        for row in table["rows"]:
            for value in (*row["cells"].values(), row["average"]):
                assert f"{value['mean']:.1f} ± {value['error']:.1f}" in shown


def test_a_single_trial_has_no_error_and_the_datasets_rule_is_shown_first(tmp_path: Path) -> None:
    for unseen in ("scene1", "scene2"):
        keep(tmp_path, plan_run("BackgroundDigits", "ERM", [unseen], steps=41, evaluate_every=10), 0.8)
    text = page(tmp_path)
    assert '<span class="number">43.2</span>' in text, "0.8 (0.2 + 0.25 2 - 0.04 2^2), without an error"
    assert re.findall(r'value="([\w-]+)" checked', text) == ["training-domain"]
    (tmp_path / "nico").mkdir()
    keep(tmp_path / "nico", plan_run("NICO", "ERM", "test", steps=41, evaluate_every=10), 0.8)
    assert re.findall(r'value="([\w-]+)" checked', page(tmp_path / "nico")) == ["validation-domain"]


def test_the_papers_numbers_stand_beside_ours_under_the_papers_rule(tmp_path: Path) -> None:
    text = page(search(tmp_path))
    training, oracle = (plain(part) for part in text.split('class="view"')[1:3])
    assert "paper 72.7 ± 0.2" in training and "paper 52.0 ± 0.1" in training and "68.4 ± 2.0" not in training
    assert "paper 47.5 ± 2.6" in oracle and "paper 70.2 ± 0.2" in oracle, "IRM's average is in Table 1 alone"


def test_the_same_records_give_the_same_page_and_new_ones_are_taken_up(tmp_path: Path) -> None:
    search(tmp_path)
    before = page(tmp_path)
    assert page(tmp_path) == before and "18 runs · 3 algorithms · ColoredMNIST" in before
    keep(tmp_path, colours("VREx", "+90%"), 0.7)
    assert "19 runs · 4 algorithms" in page(tmp_path)


def test_error_bars_and_curves_are_drawn_to_scale() -> None:
    scale = AxisScale.around([50.0, 90.0])
    assert (scale(50.0), scale(70.0), scale(90.0)) == (4.0, 50.0, 96.0)
    assert Bar.of(scale, 70.0, 10.0, 90.0) == Bar(27.0, 50.0, 73.0, 96.0)
    estimates = (Estimate(10.0, 0.0, 2), Estimate(50.0, 4.0, 2), Estimate(70.0, None, 1))
    curve = LearningCurve(Method("DAT"), (0, 10, 20), estimates, ((20, 70.0, 1),), ())
    (panel,) = panels({Column("photo"): [curve]})
    (line,) = panel.lines
    left, right = drawing.LEFT, drawing.WIDTH - drawing.RIGHT
    points = [tuple(map(float, point.split(","))) for point in line.path[1:].split("L")]
    assert [x for x, _ in points] == [left, (left + right) / 2, right]
    assert points[0][1] > drawing.HEIGHT > points[1][1] > points[2][1] > 0, "chance lies below the panel"
    upper, lower = (float(line.band[1:-1].split("L")[i].split(",")[1]) for i in (1, 4))
    assert upper + lower == pytest.approx(2 * points[1][1]) and upper < points[1][1]
    assert line.chosen == ((right, points[2][1], "DAT, trial 1: 70.0 % at step 20"),)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [((10.0, 100.0, 100.0), 95, 100), ((0.0, 0.0), 0, 5), ((50.0, 50.0), 47, 53), ((10.0, 98.0, 99.0), 95, 100)],
)
def test_an_axis_of_accuracies_has_room(values: tuple[float, ...], low: float, high: float) -> None:
    estimates = tuple(Estimate(value, None, 1) for value in values)
    curve = LearningCurve(Method("DAT"), tuple(range(len(values))), estimates, (), ())
    ticks = [float(text) for _, text in panels({Column("photo"): [curve]})[0].y_ticks]
    assert low <= min(ticks) <= low + 1 and high - 1 <= max(ticks) <= high, ticks


def test_an_unfinished_sweep_says_how_much_is_done_and_how_to_retry_what_failed(tmp_path: Path) -> None:
    plan = plan_sweep("ColoredMNIST", ("ERM", "DAT"), draws=1, trials=1, steps=41, evaluate_every=10)
    plan.save(tmp_path)
    done, half, failed, diverged, *_ = plan.runs()
    keep(tmp_path, done, 0.8)
    keep(tmp_path, half, 0.8, ended="")
    for run, state, reason in ((failed, "failed", "no <memory> left"), (diverged, "diverged", "not finite")):
        kept = RunFolder(tmp_path, run)
        kept.create()
        kept.append([Status(run.id, 7, state, reason)])  # type: ignore[arg-type]
    text = page(tmp_path)
    assert "1 of 6 runs done, 0 running, 3 to come" in text and "2 of 6 runs have no result" in text
    assert "no &lt;memory&gt; left" in text and "not finite" in text
    retry = f"--steps 41 --evaluate-every 10 --precision fp32 --out {tmp_path} --retry"
    assert text.count("--retry") == 1 and retry in text


def test_commands_make_the_same_plan_and_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Stop(Exception):
        pass

    def caught(what: Any, *_: Any, **__: Any) -> None:
        made.append(what)
        raise Stop

    monkeypatch.setattr(sweep, "run_plans", caught)
    monkeypatch.setattr(train, "train", caught)

    def follow(command: str | None) -> None:
        assert command is not None
        with pytest.raises(Stop):
            main(shlex.split(command)[1:])

    facts: dict[str, Any] = {"steps": 41, "test_domains": ("-90%",), "pairs": True, "hparams": {"eps": 2.0}}
    recipe: dict[str, Any] = {
        "start": "probe",
        "freeze": "features",
        "lr_schedule": "cosine",
        "early_stop": 3,
        "clip_gradient": 0.5,
    }
    recipe |= {"balance": "class", "class_weights": (("5-9", 2.5),)}
    facts |= recipe
    plan = plan_sweep("ColoredMNIST", ("ERM", "DAT"), trials=1, precision="bf16", space="paper", **facts)
    for precision in ("bf16", "fp32"):
        other = replace(plan, options=plan.options.changed(precision=precision))
        follow(sweep_command(other, tmp_path))
        assert made.pop() == [other]
    assert "--precision fp32" in str(sweep_command(other, tmp_path)), "a GPU's is another"
    assert sweep_command(replace(plan, variant="l2"), tmp_path) is None
    unlike: dict[str, Any] = {"augmentation": "none", "network": "resnet18-live", "weights": "mine.pth#0123"}
    run = colours("DAT", "-90%", draw=3, trial=1, hparams={"eps": 0.5, "norm": "linf", "clip_low": None}, seed=4)
    for one in (run, replace(run, full_curves=True, **recipe), plan_run("PACS", "DAT", [0], image_size=64, **unlike)):
        follow(train_command(one, tmp_path))
        assert made.pop() == one
    assert train_command(replace(run, variant="x"), tmp_path) is None
    assert train_command(replace(run, dataset="elsewhere"), tmp_path) is None


def test_a_folder_without_a_plan_tells_how_to_train_a_failed_run_again(tmp_path: Path) -> None:
    run = colours("DAT", "+80%", hparams={"eps": 3.0})
    kept = RunFolder(search(tmp_path), run)
    kept.create()
    kept.append([Status(run.id, 0, "failed", "killed")])
    text = page(tmp_path)
    assert "domainwise train --dataset ColoredMNIST --algorithm DAT --test-domain +80%" in text
    assert "--hparam eps=3.0" in text


def test_folders_of_domainbed_of_one_run_and_of_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export_domainbed(search(tmp_path / "ours"), tmp_path / "theirs")
    assert "18 runs" in page(tmp_path / "theirs") and "Command" not in page(tmp_path / "theirs")
    one = next(path.parent for path in (tmp_path / "ours").glob("*/run.json"))
    assert "1 run · 1 algorithm" in page(one)
    (tmp_path / "empty").mkdir()
    for arguments in (["empty"], ["absent"], ["ours", "--out", str(tmp_path)]):
        with pytest.raises(SystemExit) as stop:
            main(["report", str(tmp_path / arguments[0]), *arguments[1:]])
        error = capsys.readouterr().err
        assert stop.value.code == 2 and error.startswith("error: ") and len(error.splitlines()) == 1


def test_several_experiments_are_listed_at_the_top(tmp_path: Path) -> None:
    keep(search(tmp_path), plan_run("BackgroundDigits", "ERM", "scene1", steps=41, evaluate_every=10), 0.8)
    text = page(tmp_path)
    assert re.findall(r'<a href="#(results-\d)">(\w+)', text) == [
        ("results-1", "BackgroundDigits"),
        ("results-2", "ColoredMNIST"),
    ]
    keep(tmp_path, colours("ERM", "+90%", precision="bf16"), 0.8)
    links = re.findall(r'<a href="#results-\d">ColoredMNIST, (.*?)</a>', page(tmp_path))
    assert [("bf16" in link, link.endswith(runs)) for link, runs in zip(links, ("1 run", "18 runs"), strict=True)] == [
        (True, True),
        (False, True),
    ]


def test_runs_that_leave_no_domain_out_are_shown_as_such(tmp_path: Path) -> None:
    keep(tmp_path, plan_run("BackgroundDigits", "ERM", (), steps=41, evaluate_every=10), 0.8)
    text = plain(page(tmp_path))
    assert "ERM on BackgroundDigits, trial 0, step 40 scene1 scene2 scene3 scene4 60.0 60.0 60.0 60.0" in text
    assert "nothing here shows how these models perform on an unseen one" in text and "an evaluation yet" not in text


def test_runs_that_were_never_judged_make_a_page_too(tmp_path: Path) -> None:
    RunFolder(tmp_path, colours("ERM", "+90%")).create()
    assert "No run has an evaluation yet" in page(tmp_path)


# in the browser

SHOWN = "[...document.querySelectorAll({!r})].filter(e => e.getClientRects().length).map(e => e.innerText)"
VISIBLE_NUMBERS = SHOWN.format(".accuracies .number")
VISIBLE_METHODS = SHOWN.format(".accuracies tbody th")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
IMAGES = "[...document.images].map(i => i.complete && i.naturalWidth > 0)"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(search(tmp_path_factory.mktemp("search")))[0]


@needs_chromium
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_without_complaint_or_overflow(browser: Browser, sample: Path, width: int, dark: bool) -> None:
    browser.open(sample, width=width, dark=dark)
    assert browser.complaints == [] and browser.evaluate(OVERFLOW) == 0 and all(browser.evaluate(IMAGES))
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert brightness < 60 if dark else brightness > 200


@needs_chromium
def test_the_switch_changes_the_numbers_and_the_curves(browser: Browser, sample: Path) -> None:
    browser.open(sample)
    before, curves = browser.evaluate(VISIBLE_NUMBERS), browser.evaluate("document.querySelectorAll('.panel').length")
    browser.click("label:has(#rule-oracle)")
    after = browser.evaluate(VISIBLE_NUMBERS)
    assert len(before) == len(after) > 9 and before != after and curves == 9
    assert browser.evaluate("location.hash") == "#oracle"
    browser.open(sample)
    assert browser.evaluate(VISIBLE_NUMBERS) == before
    browser.evaluate("location.hash = 'oracle'; new Promise(done => setTimeout(done, 50))")
    assert browser.evaluate(VISIBLE_NUMBERS) == after, "the rule in the address is the one shown"


@needs_chromium
@pytest.mark.parametrize("width", [390, 1440])
def test_columns_sort_by_mouse_and_by_key(browser: Browser, sample: Path, width: int) -> None:
    browser.open(sample, width=width)
    first = browser.evaluate(VISIBLE_METHODS)
    values = (
        "[...document.querySelectorAll('.accuracies')].find(e => e.getClientRects().length)"
        ".querySelectorAll('tbody tr').values().map(row => Number(row.cells[1].dataset.value)).toArray()"
    )
    browser.click(".accuracies thead th:nth-child(2) button")
    falling = browser.evaluate(values)
    assert falling == sorted(falling, reverse=True) and len(set(falling)) == 3
    sorts = "[...document.querySelectorAll('.accuracies')[0].querySelectorAll('[aria-sort]')].map(e => e.ariaSort)"
    assert browser.evaluate(sorts) == ["none", "descending", "none", "none", "none", "none"]
    browser.press("Enter", 13)
    assert browser.evaluate(values) == sorted(falling), "the button has the focus: Enter turns the order round"
    browser.click(".accuracies thead th:nth-child(1) button")
    assert browser.evaluate(VISIBLE_METHODS) == first
    browser.click(".accuracies thead th:nth-child(3) button")
    assert browser.evaluate(VISIBLE_METHODS)[-1] == "ERM", "what has no number stays below"
    assert browser.complaints == []


@needs_chromium
def test_the_legend_brings_one_method_forward(browser: Browser, sample: Path) -> None:
    browser.open(sample)
    dimmed = "[...document.querySelectorAll('.dimmed')].map(e => e.dataset.method)"
    browser.click(".legend [data-method=DAT]")
    assert set(browser.evaluate(dimmed)) == {"ERM", "IRM"}
    browser.click(".legend [data-method=DAT]")
    assert browser.evaluate(dimmed) == []


@needs_chromium
def test_names_from_folders_are_text(browser: Browser, tmp_path: Path) -> None:
    for algorithm in ("ERM", "DAT"):
        for trial in range(2):
            run = colours(algorithm, "+90%", trial=trial)
            keep(tmp_path, replace(run, dataset=NASTY, test_domains=(NASTY,), variant=NASTY), 0.8)
    failed = replace(colours("IRM", "+90%"), dataset=NASTY, test_domains=(NASTY,))
    kept = RunFolder(tmp_path, failed)
    kept.create()
    kept.append([Status(failed.id, 0, "failed", NASTY)])
    path = write_page(tmp_path)[0]
    text = path.read_text()
    assert "<script>alert" not in text and text.count("<script>") == 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    browser.open(path, width=390)
    assert browser.complaints == [] and browser.evaluate(OVERFLOW) == 0 and all(browser.evaluate(IMAGES))
    assert browser.evaluate("document.querySelector('h2').innerText") == SHOWN_NASTY
    assert SHOWN_NASTY in browser.evaluate("document.querySelector('.accuracies th:nth-child(4)').innerText")
    assert SHOWN_NASTY in browser.evaluate("document.querySelector('.verdicts').innerText")
    assert browser.evaluate("document.scripts.length") == 1
    browser.click(".accuracies thead th:nth-child(2) button")
    browser.click(".legend button")
    point_at(browser, ".panel svg", 0.5)
    tip = browser.evaluate("document.querySelector('.tip').innerText")
    assert NASTY in tip and browser.evaluate("document.querySelector('.tip').querySelectorAll('script').length") == 0
    assert browser.evaluate("document.scripts.length") == 1 and browser.complaints == []


def point_at(browser: Browser, selector: str, share: float) -> None:
    """Moves the pointer to this share of an element's width."""
    browser.evaluate(
        f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
        f" const b = e.getBoundingClientRect(); e.dispatchEvent(new PointerEvent('pointermove',"
        f" {{clientX: b.left + {share} * b.width, clientY: b.top + b.height / 2, bubbles: true}})); }})()"
    )


@needs_chromium
@pytest.mark.parametrize("width", [390, 1440])
def test_the_pointer_shows_the_values_of_a_step(browser: Browser, sample: Path, width: int) -> None:
    browser.open(sample, width=width)
    (table,) = tables(collect(sample.parent), "training-domain")
    curves = [curve for curve in collect(sample.parent).curves if curve.run.test_domains == ("+90%",)]
    point_at(browser, ".panel svg", 1.0)
    tip = browser.evaluate("document.querySelector('.tip').innerText").split("\n")
    assert tip[0] == "step 40" and len(tip) == 1 + len(table.rows)
    for row in table.rows:
        own = [100 * curve.accuracy["+90%", "in"][-1] for curve in curves if curve.run.algorithm == str(row.method)]
        assert f"{row.method}: {estimate(own)}" in tip
    values = [float(line.split(": ")[1].split()[0]) for line in tip[1:]]
    assert values == sorted(values, reverse=True), "the best first, as in the picture"
    assert browser.evaluate(OVERFLOW) == 0 and browser.complaints == []
    browser.evaluate("document.querySelector('.panel svg').dispatchEvent(new PointerEvent('pointerleave'))")
    assert browser.evaluate("document.querySelector('.tip').hidden")


@needs_chromium
def test_a_phone_shows_average_and_difference_without_scrolling(browser: Browser, sample: Path) -> None:
    browser.open(sample, width=390)
    headings = "[...document.querySelectorAll('.accuracies')].find(e => e.getClientRects().length).tHead.rows[0].cells"
    assert browser.evaluate(f"[...{headings}].slice(1, 3).map(e => e.innerText.trim())") == ["average", "minus ERM"]
    assert browser.evaluate(f"{headings}[2].getBoundingClientRect().right") <= 390


def test_the_verdict_stands_on_top_under_every_rule(tmp_path: Path) -> None:
    text = page(search(tmp_path))
    top = text[: text.index("<main>")]
    for rule in ("training-domain", "oracle"):
        (table,) = tables(collect(tmp_path), rule)
        assert f'<li data-rule="{rule}">{html_escape(table.verdict).replace("&#x27;", "&#39;")}</li>' in top
        assert table.test in text and f'href="#curves-1-{rule}">Curves</a>' in top
        assert f'id="curves-1-{rule}"' in text
    anchors = re.findall(r'href="#([^"]+)"', top)
    assert anchors and all(f'id="{anchor}"' in text for anchor in anchors)
    assert "chance 50.0" in text and "Chance is 50.0 %" in text


def test_the_training_loss_is_drawn_where_it_was_recorded(tmp_path: Path) -> None:
    search(tmp_path)
    assert "Training loss" not in page(tmp_path)
    for file in tmp_path.glob("*/records.jsonl"):
        rows = [json.loads(line) for line in unseal(file.read_bytes()).splitlines()]
        rows = [row | {"training_loss": 3.0 - 0.05 * row["step"]} if "split" in row else row for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = page(tmp_path)
    assert 'id="loss-1-oracle"' in text and 'aria-label="Training loss, unseen +90% against steps"' in text
    assert r"3.000 \u00b1 0.000" in text and r"1.000 \u00b1 0.000" in text


def test_times_per_method(tmp_path: Path) -> None:
    text = plain(page(search(tmp_path)))
    assert "algorithm runs time per run in all ERM 6 40 s 4 min 00 s" in text


@needs_chromium
def test_five_hundred_runs_make_a_small_page_that_is_ready_soon(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    algorithms = ("ERM", "IRM", "VREx", "GroupDRO", "AT", "UAT", "DAT")
    path = write_page(search(tmp_path, draws=12, algorithms=algorithms))[0]
    assert len(list(tmp_path.glob("*/run.json"))) == 504
    assert path.stat().st_size < 10e6
    browser.open(path)
    ready = browser.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    assert 0 < ready < 2000 and browser.complaints == []


def test_a_page_of_another_metric_selects_and_shows_it(tmp_path: Path) -> None:
    for trial in range(2):
        for algorithm, loss in (("ERM", 0.9), ("DAT", 0.4)):
            for unseen in COLOURS:
                a_measured_run(tmp_path, algorithm, loss, trial, unseen)
    text = write_page(tmp_path, metric="nll")[0].read_text()
    shown = plain(text)
    assert "0.905 ± 0.005" in shown and "0.405 ± 0.005" in shown and "50.0" not in shown.split("Selected runs")[0]
    assert "selected by training-domain validation of negative log-likelihood" in shown
    assert (
        "Negative log-likelihood on the unseen domain while training" in shown
        and 'class="paper"' not in text.split("</style>")[-1]
    )
    assert re.findall(r'<td data-value="0.405[0-9]*" class="best">', text) and 'value="0.905" class="best"' not in text
    with pytest.raises(UserError, match="no run there has recorded worst-group"):
        write_page(search(tmp_path / "without"), metric="worst-group")
