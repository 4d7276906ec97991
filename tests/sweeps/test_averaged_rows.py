"""Rows of averaged weights beside those of the last ones: read, counted once, paired, published, exported."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, Method
from domainwise.reports.publish import publish, unpack
from domainwise.sweeps.collection import collect, distinct
from domainwise.sweeps.commands import sweep_command, train_command
from domainwise.sweeps.domainbed_export import export_domainbed
from domainwise.sweeps.estimate import evaluations
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.published import read_published
from domainwise.sweeps.reading import parse_records, read_curves, read_records
from domainwise.sweeps.status import best_so_far, sweep_progress
from domainwise.sweeps.tables import table, tables
from handmade_records import COLOURS, colours, rows

GAINS = (0.02, 0.03, 0.04)
"""By which averaged weights are ahead on each unseen domain."""


def write(folder: Path, run: Run, accuracy: float, gain: float, steps: Sequence[int] = (0, 20)) -> RunFolder:
    """A run with two evaluations; averaged weights are ahead by the gain, if it has an average."""
    run_folder = RunFolder(folder, run)
    run_folder.create()
    for step in steps:
        last = [replace(row, accuracy=accuracy if row.split == "in" else 0.6) for row in rows(run, {}, [step])]
        averaged = [
            replace(row, accuracy=row.accuracy + gain, average=run.average, training_loss=None)
            for row in last
            if run.average and not (run.average == "swad" and step == 0)
        ]
        run_folder.append([*(replace(row, training_loss=1.5) for row in last), *averaged])
    run_folder.append([Status(run.id, 20, "done", "", "a CPU", "torch")])
    return run_folder


def sweep(folder: Path, average: str = "sma", algorithms: Sequence[str] = ("ERM", "DAT")) -> Path:
    for algorithm in algorithms:
        for unseen, gain in zip(COLOURS, GAINS, strict=True):
            for trial in range(3):
                run = colours(algorithm, unseen, trial=trial, average=average)
                write(folder, run, 0.5 + 0.02 * trial + 0.1 * (algorithm == "DAT"), gain)
    return folder


@pytest.mark.parametrize("average", ["sma", "swad"])
def test_both_kinds_of_rows_are_read_fast_and_line_by_line_alike(tmp_path: Path, average: str) -> None:
    run = colours("ERM", "-90%", average=average)
    folder = write(tmp_path, run, 0.5, 0.1)
    assert parse_records(folder.records_file.read_bytes(), run) is not None, "all at once"
    fast, records = read_records(run, str(folder.path)), folder.read()[0]
    assert fast.averaged is not None and fast.averaged.steps == ((20,) if average == "swad" else (0, 20))
    for curve, slow in ((fast.curve, Curve.of(run, records)), (fast.averaged, Curve.of(run, records, average))):
        assert curve.steps == slow.steps and curve.average == slow.average and curve.seconds == slow.seconds
        for part, values in slow.accuracy.items():
            np.testing.assert_array_equal(curve.accuracy[part], values)
    assert fast.curve.training_loss is not None and fast.averaged.training_loss is None
    unfinished = RunFolder(tmp_path / "other", replace(run, trial=1))
    unfinished.create()
    unfinished.append(row for row in (replace(row, run=unfinished.run.id) for row in records) if not row.average)
    assert [curve.average for curve in read_curves(unfinished)] == [""]


def test_a_table_has_a_row_of_each_and_pairs_a_run_with_itself(tmp_path: Path) -> None:
    (found,) = table(sweep(tmp_path))
    assert [str(row.method) for row in found.rows] == ["ERM", "ERM + SMA", "DAT", "DAT + SMA"]
    averaged = found.rows[1]
    gap = averaged.difference
    assert gap is not None and gap.n == 9 and gap.mean == pytest.approx(3.0) and gap.comparisons == 3
    assert gap.error == pytest.approx(np.std([2, 3, 4] * 3, ddof=1) / 3), "trials that differ by 4 points add nothing"
    assert averaged.trials == 3 and averaged.draws == 1 and gap.clear
    (other,) = tables(collect(tmp_path), baseline="ERM + SMA")
    assert other.rows[0].difference is not None and other.rows[0].difference.mean == pytest.approx(-3.0)
    assert "ERM + SMA is clearly ahead of ERM" in found.sentence("ERM + SMA")


def test_runs_with_and_without_average_in_one_folder_count_once(tmp_path: Path) -> None:
    sweep(tmp_path, "sma"), sweep(tmp_path, ""), sweep(tmp_path, "ema", ["ERM"])
    (found,) = table(tmp_path)
    assert [str(row.method) for row in found.rows] == ["ERM", "ERM + EMA", "ERM + SMA", "DAT", "DAT + SMA"]
    assert {(row.draws, row.trials) for row in found.rows} == {(1, 3)}
    alone = sweep(tmp_path / "alone", "")
    (expected,) = table(alone)
    assert [row.cells for row in expected.rows] == [found.rows[0].cells, found.rows[3].cells]
    kept = [curve for curve in distinct(collect(tmp_path).curves) if not curve.average]
    assert len(kept) == 18 and not any(curve.run.average for curve in kept)


def test_an_unfinished_run_does_not_hide_a_finished_one(tmp_path: Path) -> None:
    run = colours("ERM", "-90%", average="sma")
    write(tmp_path, run, 0.5, 0.1)
    unfinished = RunFolder(tmp_path, replace(run, average=""))
    unfinished.create()
    unfinished.append(replace(row, run=unfinished.run.id) for row in rows(unfinished.run, {}, [0]))
    (last,) = [curve for curve in distinct(collect(tmp_path).curves) if not curve.average]
    assert last.run.id == run.id


def test_averaged_companions_serve_averaged_rows(tmp_path: Path) -> None:
    pairs = [(a, b) for i, a in enumerate(COLOURS) for b in COLOURS[i + 1 :]]
    sweep(tmp_path, algorithms=["ERM"])
    for pair in pairs:
        write(tmp_path, colours("ERM", pair, average="sma"), 0.3, 0.2)
    (found,) = table(tmp_path, "leave-one-domain-out")
    assert [str(row.method) for row in found.rows] == ["ERM", "ERM + SMA"] and found.rows[1].trials == 3
    averaged = [c for curves in collect(tmp_path).experiments().values() for c in curves if c.average and c.companions]
    assert averaged and all(one.average == "sma" for curve in averaged for one in curve.companions.values())


@pytest.mark.parametrize("average", ["sma", "swad"])
def test_published_and_unpacked_they_are_what_they_were(tmp_path: Path, average: str) -> None:
    folder = sweep(tmp_path / "sweep", average, ["ERM"])
    publish(folder, tmp_path / "published")
    assert "ERM + " + average.upper() in (tmp_path / "published/tables.md").read_text()
    unpack(tmp_path / "published", tmp_path / "unpacked")
    for run in collect(folder).runs:
        before, after = (RunFolder(parent, run).read()[0] for parent in (folder, tmp_path / "unpacked"))
        assert [replace(row, seconds=0) for row in before] == [replace(row, seconds=0) for row in after]
    shown = [table(parent)[0].as_table().rows for parent in (folder, tmp_path / "published", tmp_path / "unpacked")]
    assert shown[0] == shown[1] == shown[2]


def test_records_without_average_are_published_as_ever(tmp_path: Path) -> None:
    publish(sweep(tmp_path / "sweep", "", ["ERM"]), tmp_path / "published")
    assert all("averaged" not in json.loads(one.line()) for one in read_published(tmp_path / "published"))


def test_domainbed_gets_averaged_weights_as_an_algorithm(tmp_path: Path) -> None:
    sweep(tmp_path / "sweep", algorithms=["ERM"]), sweep(tmp_path / "sweep", "", ["ERM"])
    assert export_domainbed(tmp_path / "sweep", tmp_path / "exported") == 18
    (found,) = table(tmp_path / "exported")
    assert [(str(row.method), row.trials) for row in found.rows] == [("ERM", 3), ("ERM + SMA", 3)]
    assert found.rows[1].average is not None and found.rows[0].average is not None
    assert found.rows[1].average.mean - found.rows[0].average.mean == pytest.approx(3.0)


def test_progress_and_the_best_so_far_know_averaged_weights(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    collection = collect(folder)
    assert sweep_progress(folder, collection.runs).done == 18
    best = best_so_far(collection, collection.runs)
    assert best is not None and best.method == Method("ERM", average="sma") and "ERM + SMA, draw 0" in str(best)
    assert {row["method"] for row in collection.to_records()} == {"ERM", "ERM + SMA", "DAT", "DAT + SMA"}
    assert collection.as_table().rows[0][-1] == "18"


def test_commands_name_the_average() -> None:
    run = plan_run("BackgroundDigits", "ERM", [0], average="swad")
    assert "--average swad" in (train_command(run, Path("out")) or "")
    plans = [plan_sweep("BackgroundDigits", ["ERM"], average=average) for average in ("none", "ema")]
    named = [sweep_command(plan, Path("out")) or "" for plan in plans]
    assert "--average" not in named[0] and "--average ema" in named[1]
    candidates = plan_sweep("BackgroundDigits", ["ERM"], search="candidates")
    assert "--average none" in (sweep_command(candidates, Path("out")) or ""), "compare averages by default"
    assert "average" not in plans[0].describe() and plans[0].id != plans[1].id


def test_estimates_count_the_evaluations_of_averaged_weights() -> None:
    runs = [
        plan_run("BackgroundDigits", "ERM", [0], steps=61, evaluate_every=12, average=a) for a in ("", "sma", "swad")
    ]
    assert [evaluations(run) for run in runs] == [7, 14, 8 + 31]
