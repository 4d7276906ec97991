"""What a person is told while a sweep runs."""

import time
from pathlib import Path

import pytest

from domainwise.cli import progress
from domainwise.cli.progress import activity, progress_bar
from domainwise.cli.runs_progress import RunsProgress
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps.events import Event
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.status import sweep_progress


def test_counts_and_time_left_from_what_was_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that had ended before, and the start of the workers, say nothing about how fast it goes."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    old, first, second, third = (plan_run("BackgroundDigits", "ERM", [0], trial=t, steps=100) for t in range(4))
    shown = RunsProgress([old, first, second, third], tmp_path)
    shown.update(Event(old, 99, Status(old.id, 99, "done", ""), earlier=True))
    now[0] += 50
    shown.update(Event(first, 0))
    assert shown.line == "1/4 done, 1 running, 0 failed, 2 remaining, estimating the time left"
    now[0] += 10
    shown.update(Event(first, 50))
    assert shown.line == "1/4 done, 1 running, 0 failed, 2 remaining, about 50 s left", "249 steps at 5 a second"
    shown.update(Event(second, 0, Status(second.id, 0, "failed", "no")))
    assert shown.line.startswith("1/4 done, 1 running, 1 failed, 1 remaining")
    assert shown.statuses[second].status == "failed" and shown.best_line == ""


def test_a_run_that_was_never_judged_says_nothing_of_the_time_left(tmp_path: Path) -> None:
    """As one trained on all there is, with nothing held out."""
    unjudged, judged, waiting = (plan_run("BackgroundDigits", "ERM", [0], trial=t, steps=100) for t in range(3))
    for run in (unjudged, judged):
        folder = RunFolder(tmp_path, run)
        folder.create()
        folder.append([Record(run.id, 99, "scene1", "in", 0.5, 1.0, 7.0)] if run == judged else [])
        folder.append([Status(run.id, 99, "done", "")])
    assert sweep_progress(tmp_path, [unjudged, waiting]).seconds_left is None
    assert sweep_progress(tmp_path, [unjudged, judged, waiting]).seconds_left == 7.0


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress_bar() as bar:
        bar.start()
        task = bar.add_task("ERM on [photos]".replace("[", r"\["), total=200)
        for done in range(1, 101):
            now[0] += 0.25
            bar.update(task, completed=done)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(", about")[0] for line in lines] == [
        "ERM on [photos]: 40 of 200 (20 %)",
        "ERM on [photos]: 80 of 200 (40 %)",
    ]
    assert all(line.isprintable() for line in lines)


def test_a_bar_that_is_silent_prints_nothing_anywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    with progress_bar(silent=True) as bar:
        bar.update(bar.add_task("predicting", total=2), completed=1)
    assert capsys.readouterr() == ("", "")


def test_what_is_not_counted_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.02)
    with activity("reading") as now:
        time.sleep(0.1)
        now("drawing")
        time.sleep(0.1)
    told = capsys.readouterr().err
    assert told.startswith("reading: 0 s so far\n") and told.endswith("drawing: 0 s so far\n")
