"""`domainwise demo`: what it trains, shows, writes and says to mistakes, and that it can be stopped at any time."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commands import Command, standard_json
from demo_tables import sign_test
from documents import ROOT
from domainwise.cli import demo, runs_progress
from domainwise.cli.demo import METHODS, SETTINGS, TRIALS, demo_plan, demo_table, sentence
from domainwise.cli.live_table import live_table
from domainwise.cli.runs_progress import RunsProgress
from domainwise.core.errors import UserError
from domainwise.protocol.options import DEFAULTS
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run
from domainwise.reports.page.write import write_page
from domainwise.sweeps import launch, local
from domainwise.sweeps.collection import collect
from domainwise.sweeps.events import Event
from domainwise.sweeps.plan import Plan
from domainwise.sweeps.tables import tables
from handmade_records import write_run
from processes import alive, all_gone

RUN_FILES = {"run.json", "records.jsonl", "model.safetensors", "best.safetensors"}
REPEATED = ROOT / "results" / "demo-robustness"
QUICK = ("--steps", "3", "--trials", "1", "--out", "out")


@pytest.fixture
def quick_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's page without its models, which take most of the time."""
    monkeypatch.setattr(demo, "write_report", lambda out, _device: write_page(out)[0])


def planned(trials: int = TRIALS, **changes: Any) -> list[Run]:
    return demo_plan(DEFAULTS.changed(steps=3, **changes), trials).runs()


@pytest.mark.usefixtures("quick_workers", "quick_page")
def test_the_demo_from_end_to_end(domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder like a sweep's: with a plan, so that every command reads it."""
    result = domainwise("demo", *QUICK, "--json")
    table = standard_json(result.out)
    assert result.status == 0 and "12 runs: ERM, UAT, DAT, each of 4 backgrounds left out, 1 trial" in result.err
    assert [row["method"] for row in table["rows"]] == ["ERM", "UAT", "DAT"]
    assert (table["dataset"], table["selection"]) == ("BackgroundDigits", "training-domain")
    for row in table["rows"]:
        assert list(row["cells"]) == ["scene1", "scene2", "scene3", "scene4"]
        assert all(0 < cell["mean"] < 100 and cell["n"] == 1 for cell in row["cells"].values())
        assert row["difference"] is None if row["method"] == "ERM" else row["difference"]["n"] == 4
        assert (row["draws"], row["trials"], row["steps"]) == (1, 1, 3)
    assert table["page"] == "out/report.html" and "<title>out" in Path(table["page"]).read_text()
    folders = {folder for folder in Path("out").iterdir() if folder.is_dir()}
    assert {folder.name for folder in folders} == {run.id for run in planned(1)} | {"plans"}
    assert all({file.name for file in folder.iterdir()} == RUN_FILES for folder in folders if folder.name != "plans")

    monkeypatch.setattr(local, "_Worker", lambda *_: pytest.fail("nothing is trained twice"))
    again = domainwise("demo", *QUICK)
    assert again.status == 0 and "\x1b" not in again.out + again.err
    assert re.search(
        r"On backgrounds it never saw, DAT reads \S+ % of the digits, ERM \S+ %: .* over 4 pairs", again.out
    )
    assert again.out.endswith("Page, to open in a browser: out/report.html\n")
    assert "12 runs: 12 done" in domainwise("status", "out").out
    assert "DAT" in domainwise("table", "out").out
    assert domainwise("report", "out", "--no-models").status == 0


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_the_page_of_the_demo_shows_its_models(domainwise: Command) -> None:
    assert domainwise("demo", *QUICK).status == 0
    page = Path("out/report.html").read_text()
    for words in ("Perturbations", "Attention", "Which shift is it?", "one perturbation per domain"):
        assert words in page


def test_what_is_published_is_what_the_demo_trains() -> None:
    published = {run.id for run in collect(ROOT / "results" / "demo").runs}
    assert published == {run.id for run in demo_plan(DEFAULTS.changed(steps=demo.STEPS)).runs()}


def test_the_repetitions_are_demos_with_other_seeds_threads_and_precisions() -> None:
    """Every seed in both precisions, and both numbers of threads in each precision."""
    repeated = collect(REPEATED).runs
    settings = {(run.seed, run.threads, run.precision) for run in repeated}
    seeds, threads, precisions = set(range(5)), {1, 2}, {"fp32", "bf16"}
    assert {(seed, precision) for seed, _, precision in settings} == set(product(seeds, precisions))
    assert {(number, precision) for _, number, precision in settings} == set(product(threads, precisions))
    expected = set()
    for seed, number, precision in settings:
        options = DEFAULTS.changed(steps=demo.STEPS, seed=seed, threads=number, precision=precision)
        expected |= {run.id for run in demo_plan(options).runs()}
    assert {run.id for run in repeated} == expected


def test_dat_is_clearly_ahead_in_every_repetition() -> None:
    """By the test of every table, by three standard errors, and by the sign test."""
    repetitions = tables(collect(REPEATED).finished(), "training-domain")
    assert len(repetitions) == 10
    for table in repetitions:
        (gap,) = (row.difference for row in table.rows if str(row.method) == "DAT")
        assert gap.clear and gap.mean > 3 * gap.error and sign_test(gap.ahead, gap.behind) < 0.05


def test_seed_threads_and_precision_are_those_of_the_runs(domainwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(plans: list[Plan], *_: object, **__: object) -> None:
        run = plans[0].runs()[-1]
        raise UserError(f"{run.seed} {run.threads} {run.precision} {run.hparams['eps']} {run.steps}")

    monkeypatch.setattr(launch, "launch_plans", launched)
    options = ("--seed", 7, "--threads", 2, "--precision", "bf16")
    assert domainwise("demo", *options).err == f"error: 7 2 bf16 {SETTINGS['eps']} {demo.STEPS}\n"


# mistakes


def test_a_folder_with_other_runs_is_refused(domainwise: Command, tmp_path: Path) -> None:
    run = planned(1)[0]
    write_run(tmp_path / "out", run, steps=(0, 2))
    other = write_run(tmp_path / "out", replace(run, seed=1))
    before = sorted(tmp_path.rglob("*"))
    result = domainwise("demo", *QUICK)
    assert result.is_one_line_error and "out holds 1 run from outside this demo" in result.err
    assert "(--out)" in result.err and sorted(tmp_path.rglob("*")) == before
    for file in other.path.iterdir():
        file.unlink()
    other.path.rmdir()
    demo.check_folder(tmp_path / "out", planned(1))


def test_a_folder_with_other_plans_or_published_records_is_refused(domainwise: Command, tmp_path: Path) -> None:
    demo_plan(DEFAULTS.changed(steps=4), 1).save(tmp_path / "out")
    assert "out holds 12 runs from outside this demo" in domainwise("demo", *QUICK).err
    result = domainwise("demo", "--out", ROOT / "results" / "demo")
    assert result.is_one_line_error and "holds published records: name another folder" in result.err


@pytest.mark.usefixtures("quick_page")
@pytest.mark.parametrize("failing", [("ERM",), METHODS])
def test_runs_that_fail_are_named_and_the_rest_is_shown(
    domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Sequence[str]
) -> None:
    def events(*_: object, **__: object) -> Iterator[Event]:
        for run in planned(1):
            failed = Event(run, 1, Status(run.id, 1, "failed", f"no {run.algorithm} today"))
            yield failed if run.algorithm in failing else finished(tmp_path / "out", run, 0.5)

    monkeypatch.setattr(launch, "launch_plans", events)
    result = domainwise("demo", *QUICK)
    assert result.err.count("failed: no ERM today") == 4
    if failing == METHODS:
        assert result.status == 2 and not result.out
        assert result.err.endswith("error: every run failed; the first: no ERM today\n")
    else:
        assert result.status == 1 and "Page" in result.out
        assert "DAT and ERM were not both run: nothing to compare." in result.out


# what it shows


def finished(folder: Path, run: Run, accuracy: float) -> Event:
    """The last event of a run with this accuracy on the unseen domain, at the step that validation selects."""
    given = {f"{domain} out": [0.1, 0.9] for domain in run.train_domains}
    write_run(folder, run, given | {f"{run.test_domains[0]} in": [0.1, accuracy]}, steps=(0, 2))
    return Event(run, 2, Status(run.id, 2, "done", ""))


def test_the_sentence_at_the_end(tmp_path: Path) -> None:
    for run in planned():
        finished(tmp_path, run, {"ERM": 0.8, "UAT": 0.85, "DAT": 0.9}[run.algorithm] + 0.01 * run.trial)
    assert sentence(demo_table(tmp_path)) == (
        "On backgrounds it never saw, DAT reads 91.0 % of the digits, ERM 81.0 %: "
        "+10.0 ± 0.0 points over 12 pairs (p = 0.00049, clear)."
    )


def shown_rows(shown: RunsProgress) -> list[list[str]]:
    """The cells of every row of the live table, without the heading."""
    console = Console(width=100, record=True, file=StringIO())
    console.print(live_table(shown))
    lines = [line for line in console.export_text().splitlines() if line.split()[:1] in ([name] for name in METHODS)]
    return [re.split(r"\s{3,}", line.strip()) for line in lines]


def test_the_live_table_fills_in(tmp_path: Path) -> None:
    runs = planned(2)
    shown = RunsProgress(runs, tmp_path)
    assert shown_rows(shown) == [[method, *"·····"] for method in METHODS]
    by_cell = {(run.algorithm, run.test_domains[0], run.trial): run for run in runs}
    shown.update(Event(by_cell["DAT", "scene2", 0], 0))
    assert shown_rows(shown)[2] == ["DAT", "·", "33 %", "·", "·", "·"]
    for domain in ("scene1", "scene2", "scene3", "scene4"):
        shown.update(finished(tmp_path, by_cell["DAT", domain, 0], 0.9))
    assert shown_rows(shown)[2] == ["DAT", *["90.0"] * 4, "90.0"]
    shown.update(Event(by_cell["DAT", "scene1", 1], 1))
    assert shown_rows(shown)[2][1] == "90.0  67 %"
    shown.update(finished(tmp_path, by_cell["DAT", "scene1", 1], 0.8))
    assert shown_rows(shown)[2] == ["DAT", "85.0", *["90.0"] * 3, "88.8"]
    for trial in (0, 1):
        run = by_cell["ERM", "scene4", trial]
        shown.update(Event(run, 0, Status(run.id, 0, "failed", "no")))
    assert shown_rows(shown)[0] == ["ERM", "·", "·", "·", "failed", "·"]


def test_at_a_terminal_the_table_is_drawn_and_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(width=100, file=StringIO(), force_terminal=True)
    monkeypatch.setattr(runs_progress, "errors_console", terminal)
    runs = planned(1)
    events = (finished(tmp_path, run, 0.75) for run in runs)
    assert len(runs_progress.follow_runs(runs, events, tmp_path, as_table=True)) == 12
    printed = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "75.0" in printed and "12/12 done" in printed and printed.endswith("\x1b[2K")


# stopping


def descendants(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = {int(child) for task in tasks for child in (task / "children").read_text().split()}
    return children | {below for child in children for below in descendants(child)}


class RunningDemo:
    """The demo in a process group of its own, as a shell starts it. Nothing of it outlives the `with`."""

    def __init__(self, out: Path, steps: int = 4) -> None:
        self.log = out.with_suffix(".log")
        self.workers: set[int] = set()
        command = [sys.executable, "-m", "domainwise", *self.arguments(out, steps)]
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)

    @staticmethod
    def arguments(out: Path, steps: int = 4) -> list[str]:
        return ["demo", "--steps", str(steps), "--trials", "1", "--workers", "2", "--out", str(out)]

    def __enter__(self) -> "RunningDemo":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in {self.process.pid, *self.workers}:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def text(self) -> str:
        """What it printed, as one line."""
        return " ".join(self.log.read_text().split())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text
            time.sleep(0.02)
        self.workers = descendants(self.process.pid)


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


@needs_proc
@pytest.mark.usefixtures("quick_workers", "quick_page")
def test_ctrl_c_stops_the_demo_cleanly_and_the_same_command_completes(domainwise: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def ended() -> dict[Path, bytes]:
        contents = {file: file.read_bytes() for file in out.glob("*/records.jsonl")}
        return {file: content for file, content in contents.items() if b'"status": "done"' in content}

    with RunningDemo(out) as demo:
        demo.wait_until(lambda: bool(ended()))
        os.kill(demo.process.pid, signal.SIGINT)
        assert demo.process.wait(timeout=15) == 130, demo.text
        assert "the same command continues" in demo.text and "Traceback" not in demo.text
        assert demo.workers and all_gone(demo.workers)
    kept = ended()
    assert len(kept) < 12

    completed = domainwise(*RunningDemo.arguments(out))
    assert completed.status == 0 and "DAT reads" in completed.out
    assert len(list(out.glob("*/model.safetensors"))) == 12 and not list(out.glob("*/checkpoint.pt"))
    assert all(file.read_bytes() == content for file, content in kept.items()), "finished runs are kept"


@pytest.mark.usefixtures("quick_workers")
def test_ctrl_c_while_the_page_is_written_says_how_to_continue(
    domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for run in planned(1):
        finished(tmp_path / "out", run, 0.5)
    monkeypatch.setattr(demo, "write_report", interrupted)
    result = domainwise("demo", *QUICK)
    assert result.status == 130 and "stopped; all runs are kept: the same command continues" in result.err


@needs_proc
@pytest.mark.parametrize(
    ("number", "workers_too"),
    [
        pytest.param(signal.SIGTERM, False, id="the driver alone", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, id="all processes"),
        pytest.param(signal.SIGHUP, False, id="a closed terminal"),
    ],
)
def test_a_signal_saves_every_run_in_progress_however_often_it_comes(
    tmp_path: Path, number: signal.Signals, workers_too: bool
) -> None:
    out = tmp_path / "out"
    with RunningDemo(out, steps=100_000) as demo:
        demo.wait_until(lambda: len([file for file in out.glob("*/records.jsonl") if file.read_bytes()]) == 2)
        for _ in range(2):
            for pid in (*(demo.workers if workers_too else ()), demo.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.005)
        assert demo.process.wait(timeout=15) == 130, demo.text
        assert "the same command continues" in demo.text and "Traceback" not in demo.text
        assert demo.workers and all_gone(demo.workers)
    assert len(list(out.glob("*/checkpoint.pt"))) == 2


@needs_proc
def test_workers_leave_ctrl_c_to_the_driver_even_while_they_start(tmp_path: Path) -> None:
    """A terminal sends it to every process of the group, also to those still importing, in any order."""
    with RunningDemo(tmp_path / "out") as demo:
        demo.wait_until(lambda: len(descendants(demo.process.pid)) >= 3)  # two workers and multiprocessing's tracker
        time.sleep(0.3)
        for pid in demo.workers:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.3)
        os.kill(demo.process.pid, signal.SIGINT)
        assert demo.process.wait(timeout=25) == 130, demo.text
        assert "the same command continues" in demo.text and "Traceback" not in demo.text, demo.text
        assert all_gone(demo.workers)
