"""Leaderboards from records made by hand: the order, what was searched, and what runs took."""

from dataclasses import replace
from pathlib import Path

import pytest

from domainwise.protocol.records import Status
from domainwise.sweeps.collection import Collection, collect
from domainwise.sweeps.leaderboard import Leaderboard, Provenance, leaderboards
from handmade_records import COLOURS, colours, write_done_run, write_sweep


def only(collection: Collection) -> Leaderboard:
    (board,) = leaderboards(collection)
    return board


def test_methods_come_best_first_under_every_rule(tmp_path: Path) -> None:
    """On unseen `out` splits, where the oracle looks, ERM's second draw is the best of all."""
    for algorithm, accuracy in (("ERM", 0.5), ("DAT", 0.6)):
        for unseen in COLOURS:
            write_done_run(tmp_path, colours(algorithm, unseen), accuracy, train_out=0.7)
    for unseen in COLOURS:
        write_done_run(tmp_path, colours("ERM", unseen, draw=1), 0.9, unseen_out=0.8)
    board = only(collect(tmp_path))
    assert [entry.name for entry in board.ranked("training-domain")] == ["DAT", "ERM"]
    assert [entry.name for entry in board.ranked("oracle")] == ["ERM", "DAT"]
    assert "leave-one-domain-out" not in board.tables
    assert {entry.name: entry.effort for entry in board.entries} == {"ERM": "2 x 1 x 21", "DAT": "1 x 1 x 21"}


def test_a_method_without_an_average_has_no_place(tmp_path: Path) -> None:
    for unseen in COLOURS:
        write_done_run(tmp_path, colours("ERM", unseen), 0.5)
    write_done_run(tmp_path, colours("DAT", "-90%"), 0.9)  # not run on the others
    board = only(collect(tmp_path))
    assert [entry.name for entry in board.ranked("oracle")] == ["ERM"] and len(board.entries) == 2


def test_names_leave_out_that_the_papers_ranges_were_searched(tmp_path: Path) -> None:
    for unseen in COLOURS:
        write_done_run(tmp_path, colours("DAT", unseen, variant="paper"), 0.5)
        write_done_run(tmp_path, colours("DAT", unseen, variant="eps 2", hparams={"eps": 2}), 0.5)
    assert sorted(entry.name for entry in only(collect(tmp_path)).entries) == ["DAT", "DAT (eps 2)"]


@pytest.mark.parametrize(("seconds", "says"), [((3.0, 5.0, 100.0), "5.0 s"), ((1000.0, 1500.0, 4000.0), "1,500 s")])
def test_the_time_of_a_run_is_the_median(tmp_path: Path, seconds: tuple[float, ...], says: str) -> None:
    for unseen, took in zip(COLOURS, seconds, strict=True):
        write_done_run(tmp_path, colours("ERM", unseen), 0.5, seconds=took)
    (entry,) = only(collect(tmp_path)).entries
    assert (entry.time, entry.runs) == (says, 3)


def test_devices_are_those_of_the_methods_own_runs(tmp_path: Path) -> None:
    collection = collect(write_sweep(tmp_path))
    gpu, cpu = ("NVIDIA H200", "domainwise 12ab, torch 2.11.0", "2026-11-15"), ("AMD EPYC", "", "2026-11-16")
    statuses = {}
    for run in collection.runs:
        device, software, date = gpu if run.algorithm == "DAT" else cpu
        statuses[run.id] = Status(run.id, 20, "done", "", device, software, date)
    collection = replace(collection, statuses=statuses)
    assert {one.name: one.devices for one in only(collection).entries} == {
        "ERM": ("AMD EPYC",),
        "DAT": ("NVIDIA H200",),
    }
    said = "24 runs on AMD EPYC and NVIDIA H200; domainwise 12ab; torch 2.11.0; 2026-11-15 to 2026-11-16"
    assert str(Provenance.of(collection)) == said
