"""Collecting records: every run of a folder, and what is damaged or foreign beside them."""

import gc
import json
import os
import random
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from domainwise.core.errors import UserError
from domainwise.protocol.checked_lines import unseal
from domainwise.protocol.columns import parse_columns
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import FORMAT
from domainwise.protocol.selection import Curve
from domainwise.sweeps import reading
from domainwise.sweeps.collection import Collection, collect, with_companions
from domainwise.sweeps.reading import parse_records, read_records
from handmade_records import a_run, colours, rows, write_done_run, write_run


def test_every_run_of_a_folder_is_found_ended_or_not(tmp_path: Path) -> None:
    runs = [a_run(draw=draw) for draw in range(4)]
    for run, ended in zip(runs, ("done", "diverged", "failed", ""), strict=True):
        write_run(tmp_path, run, ended=ended)
    RunFolder(tmp_path, a_run(draw=4)).create()
    found = collect(tmp_path)
    assert {c.run for c in found.curves} == set(runs) and found.notes == (), "one that was never judged has no curve"
    assert {run.draw: found.statuses[run.id].status for run in runs[:3]} == {0: "done", 1: "diverged", 2: "failed"}
    assert set(found.statuses) == {run.id for run in runs[:3]}


def test_an_empty_folder_and_none_at_all(tmp_path: Path) -> None:
    assert collect(tmp_path) == Collection((), {}, ())
    for path in (tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match="is not a folder: give the folder of a sweep"):
            collect(path)


def test_foreign_files_and_folders_are_left_alone(tmp_path: Path) -> None:
    kept = write_run(tmp_path, a_run())
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "plan.json").write_text("{}")
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    (kept.path / "claim.1").touch()
    found = collect(tmp_path)
    assert [c.run for c in found.curves] == [kept.run] and found.notes == ()


def test_a_file_cut_short_counts_up_to_its_last_whole_evaluation(tmp_path: Path) -> None:
    kept = write_run(tmp_path, a_run(), {"scene1 in": [0.1, 0.2, 0.3]}, ended="")
    whole = kept.records_file.read_bytes()
    kept.records_file.write_bytes(whole[:-7])
    (found,) = collect(tmp_path).curves
    assert found.steps == (0, 10) and list(found.accuracy["scene1", "in"]) == [0.1, 0.2]
    kept.records_file.write_bytes(whole[:7])
    assert collect(tmp_path) == Collection((), {}, (), (kept.run,))


def test_the_folder_of_one_run_holds_that_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, a_run(trial=1))
    kept = write_run(tmp_path, a_run())
    assert collect(kept.path).runs == (kept.run,) and collect(kept.path).curves[0].steps
    monkeypatch.chdir(kept.path)
    assert collect(Path()).runs == (kept.run,)


FUTURE = a_run(draw=1).describe() | {"something": "new"}
FOREIGN = {
    "future format": json.dumps(FUTURE | {"format": FORMAT + 1}),
    "future field": json.dumps(FUTURE),
    "no domains": json.dumps({"format": FORMAT}),
    "cut": json.dumps(FUTURE)[:100],
    "empty": "",
    "object": "{}",
    "list": "[]",
    "null": "null",
    "string": '"run"',
    "bytes": "\xff",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_run_is_passed_over_with_a_note_and_the_rest_is_read(tmp_path: Path, text: str) -> None:
    good = write_run(tmp_path, a_run())
    (tmp_path / "0foreign").mkdir()
    (tmp_path / "0foreign" / "run.json").write_bytes(text.encode("latin-1"))
    found = collect(tmp_path)
    assert [c.run for c in found.curves] == [good.run]
    (note,) = found.notes
    assert "0foreign" in note and "skipped" in note and "\n" not in note


FIRST = asdict(rows(a_run())[0])
DAMAGE = {
    "cut": b"{",
    "text": b"garbage",
    "blank": b"",
    "number": b"7",
    "list": b"[]",
    "bytes": b"\xff\xff",
    "fields": b'{"step": 0}',
    "no accuracy": json.dumps(FIRST | {"accuracy": None}).encode(),
    "accuracy in words": json.dumps(FIRST | {"accuracy": "high"}).encode(),
}


@pytest.mark.parametrize("line", DAMAGE.values(), ids=DAMAGE)
def test_damaged_records_are_passed_over_with_a_note_and_the_rest_is_read(tmp_path: Path, line: bytes) -> None:
    good, bad = write_run(tmp_path, a_run()), write_run(tmp_path, a_run(draw=1))
    _, *rest = bad.records_file.read_bytes().split(b"\n")
    bad.records_file.write_bytes(b"\n".join([line, *rest]))
    found = collect(tmp_path)
    assert [c.run for c in found.curves] == [good.run]
    (note,) = found.notes
    assert bad.run.id in note and "line 1" in note and "\n" not in note


def test_a_curve_has_the_companions_of_its_own_settings(tmp_path: Path) -> None:
    for eps in (1.0, 9.0):
        for unseen in (["-90%"], ["-90%", "+80%"], ["-90%", "+90%"]):
            write_done_run(tmp_path, colours("DAT", unseen, hparams={"eps": eps}), 0.1 * eps)
    curves = with_companions(collect(tmp_path).curves)
    assert len(curves) == 2 and all(set(curve.companions) == {"+80%", "+90%"} for curve in curves)
    for curve in curves:
        assert {other.run.hparams["eps"] for other in curve.companions.values()} == {curve.run.hparams["eps"]}


def test_a_copy_of_a_runs_folder_is_not_counted_twice(tmp_path: Path) -> None:
    kept = write_run(tmp_path, a_run())
    shutil.copytree(kept.path, tmp_path / f"{kept.run.id} (copy)")
    found = collect(tmp_path)
    assert [c.run for c in found.curves] == [kept.run]
    (note,) = found.notes
    assert "(copy)" in note


@pytest.mark.parametrize("kind", ["even", "cut", "uneven", "repeated", "disordered", "strange", "shifted", "backwards"])
def test_the_fast_reader_reads_what_the_slow_one_reads(tmp_path: Path, kind: str) -> None:
    luck = random.Random(kind)
    for number in range(25):
        run = a_run(draw=number)
        steps = sorted(luck.sample(range(100), luck.randrange(0, 6)))
        found = [Record(**(asdict(row) | {"accuracy": luck.random()})) for row in rows(run, steps=steps)]
        if kind == "cut":
            found = found[: luck.randrange(len(found) + 1)]
        if kind in ("uneven", "strange"):
            found = [row for row in found if luck.random() < 0.8]
        if kind in ("repeated", "strange"):
            found = [row for row in found for _ in range(1 + (luck.random() < 0.2))]
        if kind in ("disordered", "strange"):
            luck.shuffle(found)
        if kind == "backwards":
            found.sort(key=lambda row: -row.step)
        if kind == "shifted" and len(steps) > 1:
            where = luck.randrange(0, len(found) - 5)
            found[where + 5 if luck.random() < 0.5 else where] = found[where]  # one twice, in place of its next
        folder = RunFolder(tmp_path, run)
        folder.create()
        folder.append([*found, *([Status(run.id, 20, "done", "")] if luck.random() < 0.5 else [])])
        read, (records, expected) = read_records(run, str(folder.path)), folder.read()
        fast, status = read.curve, read.status
        slow = Curve.of(run, records)
        assert status == expected and fast.run == slow.run and fast.steps == slow.steps
        assert set(fast.accuracy) == set(slow.accuracy)
        for part, values in slow.accuracy.items():
            np.testing.assert_array_equal(fast.accuracy[part], values)


@pytest.mark.parametrize("enabled", [True, False])
def test_collecting_leaves_the_garbage_collector_as_it_was(tmp_path: Path, enabled: bool) -> None:
    try:
        (gc.enable if enabled else gc.disable)()
        collect(tmp_path)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


IN_THE_WAY = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "broken link": lambda path: path.symlink_to("nothing"),
    "circle": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("name", ["run.json", "records.jsonl", ""], ids=["run", "records", "folder"])
@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_what_cannot_be_read_is_named_and_the_rest_is_read(tmp_path: Path, name: str, kind: str) -> None:
    good, bad = write_run(tmp_path, a_run()), write_run(tmp_path, a_run(draw=1))
    if name:
        (bad.path / name).unlink()
    else:
        shutil.rmtree(bad.path)
    if name or kind != "folder":
        IN_THE_WAY[kind](bad.path / name if name else bad.path)
        found = collect(tmp_path)
        assert [c.run for c in found.curves] == [good.run]
        (note,) = found.notes
        assert note.startswith(f"{bad.path}: skipped (") and list(found.damaged) == [bad.run.id]


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = write_run(tmp_path, a_run()), write_run(tmp_path, a_run(draw=1))
    opened = os.open

    def refused(path: str, *rest: int) -> int:
        if str(path) == str(bad.records_file):
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", refused)
    found = collect(tmp_path)
    assert [c.run for c in found.curves] == [good.run]
    assert found.notes == (f"{bad.path}: skipped (records.jsonl cannot be read (Permission denied))",)


def test_a_run_without_its_description_is_named(tmp_path: Path) -> None:
    bad = write_run(tmp_path, a_run())
    (bad.path / "run.json").unlink()
    assert collect(tmp_path).notes == (f"{bad.path}: skipped (it has no run.json)",)


def test_runs_that_are_not_finished_are_left_out_and_those_that_diverged_stay(tmp_path: Path) -> None:
    runs = {ended: a_run(draw=draw) for draw, ended in enumerate(("done", "diverged", "failed", ""))}
    for ended, run in runs.items():
        write_run(tmp_path, run, ended=ended)
    everything = collect(tmp_path)
    finished = everything.finished()
    assert {curve.run for curve in finished.curves} == {runs["done"], runs["diverged"]}
    assert finished.completeness().sentences == [
        f"left out: 1 run not finished ({runs[''].id}), 1 run failed ({runs['failed'].id})",
        f"1 run diverged ({runs['diverged'].id}) and counts up to there",
    ]
    assert everything.completeness().sentences[0].startswith("partial, with 1 run not finished (")
    assert everything.completeness().is_partial and not finished.completeness().is_partial


def test_only_a_few_runs_are_named(tmp_path: Path) -> None:
    for draw in range(5):
        write_run(tmp_path, a_run(draw=draw), ended="failed")
    (sentence,) = collect(tmp_path).finished().completeness().sentences
    assert sentence.startswith("left out: 5 runs failed (") and sentence.endswith(" and 2 more)")


def test_records_with_checksums_are_read_as_columns(tmp_path: Path) -> None:
    kept = write_run(tmp_path, a_run(), {"scene1 in": [0.1, 0.2, 0.3]})
    sealed = kept.records_file.read_bytes()
    (plain, _, _), (checked, _, status) = (parse_records(data, kept.run) for data in (unseal(sealed), sealed))
    assert sealed != unseal(sealed) and status.status == "done" and checked.steps == plain.steps == (0, 10, 20)
    np.testing.assert_array_equal(checked.values["accuracy"], plain.values["accuracy"])
    assert parse_records(sealed.replace(b"0.2,", b"0.3,", 1), kept.run) is None


@pytest.mark.parametrize("change", [('"loss"', '"lost"'), ("0.5,", "0.5x,"), ("scene2", "scene9"), ("}\n", "} \n")])
def test_lines_unlike_ours_are_not_read_as_columns(tmp_path: Path, change: tuple[str, str]) -> None:
    kept = write_run(tmp_path, a_run(), ended="")
    assert parse_columns(kept.records_file.read_text().replace(*change, 1), kept.run.id) is None


def test_helper_processes_read_what_one_process_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for draw in range(5):
        write_run(tmp_path, a_run(draw=draw))
    (tmp_path / a_run(draw=3).id / "run.json").write_text("{}")
    alone = collect(tmp_path)
    monkeypatch.setattr(reading, "MANY", 2)
    monkeypatch.setattr(reading, "CHUNK", 1)
    monkeypatch.setattr(reading, "cores", lambda: 2)
    together = collect(tmp_path)
    assert together.runs == alone.runs and together.statuses == alone.statuses and together.notes == alone.notes
    for one, other in zip(together.curves, alone.curves, strict=True):
        assert one.steps == other.steps and one.seconds == other.seconds
        np.testing.assert_equal(dict(one.accuracy), dict(other.accuracy))
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert collect(tmp_path).runs == alone.runs, "what a helper could not read is read here"
