"""Published records: small, and as good as the sweep's own folder for every rule, command and continuation."""

import gzip
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from commands import Command
from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.locks import RunLock
from domainwise.protocol.records import PenaltyRecord, Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import RULES
from domainwise.protocol.statistics import choices
from domainwise.reports.publish import comparable_runs, publish, unpack
from domainwise.sweeps.collection import collect
from domainwise.sweeps.plan import plan_sweep, planned_runs
from domainwise.sweeps.published import FILE, read_published
from domainwise.sweeps.status import sweep_progress
from domainwise.sweeps.tables import groups, tables

PLAN = plan_sweep("ColoredMNIST", ("ERM", "DAT"), draws=3, trials=2, pairs=True, steps=201, evaluate_every=20)
IMAGES = {"+90%": 4666, "+80%": 4666, "-90%": 4667}


def rows(run: Run, luck: random.Random) -> list[Record]:
    """Accuracies as counted: so close together that rounding them would change what is selected."""
    parts = [(domain, "out") for domain in run.train_domains]
    parts += [(domain, split) for domain in run.test_domains for split in ("in", "out")]
    return [
        Record(run.id, step, *part, luck.randint(3000, 3003) / IMAGES[part[0]], luck.random(), 0.1234 * step)
        for step in range(0, run.steps, run.evaluate_every)
        for part in parts
    ]


def keep(folder: Path, run: Run, luck: random.Random, ended: bool = True) -> None:
    kept = RunFolder(folder, run)
    kept.create()
    status = Status(run.id, run.steps - 1, "done", "", "a card", "domainwise abc, torch 2", "2026-11-15", 2)
    kept.append([*rows(run, luck), *([status] if ended else [])])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, luck = tmp_path_factory.mktemp("sweep"), random.Random(1)
    for run in planned_runs([PLAN]):
        keep(folder, run, luck)
    PLAN.save(folder)
    return folder


def test_every_rule_chooses_the_same(sweep: Path, tmp_path: Path) -> None:
    done = publish(sweep, tmp_path)
    assert (done.runs, done.unfinished, done.of_unfinished_draws) == (len(PLAN.runs()), 0, 0)
    assert done.without_provenance == 0
    for own, published in zip(groups(collect(sweep)), groups(collect(tmp_path)), strict=True):
        for rule in RULES:
            assert choices(published.curves, rule) == choices(own.curves, rule)
    assert {rule for rule in RULES if choices(groups(collect(tmp_path))[0].curves, rule)} == {
        "training-domain",
        "oracle",
        "leave-one-domain-out",
        "worst-domain",
    }


def test_the_file_is_small_and_the_same_every_time(sweep: Path, tmp_path: Path) -> None:
    first, second = publish(sweep, tmp_path / "a").file, publish(sweep, tmp_path / "b").file
    assert first.read_bytes() == second.read_bytes()
    values = sum(len(one.last.steps) * len(one.last.accuracy) for one in read_published(tmp_path / "a"))
    assert first.stat().st_size < 10 * values


def test_only_whole_draws_are_published(tmp_path: Path) -> None:
    plan = replace(PLAN, pairs=False)
    runs, luck = plan.runs(), random.Random(2)
    unfinished = next(run for run in runs if run.draw == 1)
    for run in runs:
        if run.draw < 2:
            keep(tmp_path / "sweep", run, luck, ended=run != unfinished)
    alone = replace(unfinished, seed=5)
    keep(tmp_path / "sweep", alone, luck)
    plan.save(tmp_path / "sweep")
    done = publish(tmp_path / "sweep", tmp_path / "published")
    kept = {one.run.id for one in read_published(tmp_path / "published")}
    assert kept == {run.id for run in runs if run.draw == 0} | {alone.id}, "a run of no plan is its own"
    assert (done.unfinished, done.of_unfinished_draws) == (1, len(runs) // 3 - 1)
    stands = sweep_progress(tmp_path / "published", runs)
    assert (stands.done, stands.remaining) == (len(runs) // 3, 2 * len(runs) // 3), "the plan tells what is missing"
    (table,) = tables(collect(tmp_path / "published").finished(), "oracle")[:1]
    assert f"{2 * len(runs) // 3} planned runs missing (ERM, DAT)" in table.caption
    assert table.as_table().markdown() in (tmp_path / "published" / "tables.md").read_text()


def test_trials_are_left_out_where_no_draw_has_ended_in_all() -> None:
    plan = replace(PLAN, pairs=False, draws=2, trials=3)
    of = {cell: {run.id for run in plan.runs() if (run.draw, run.trial) == cell} for cell in ((0, 0), (0, 1), (1, 0))}
    ended = set().union(*of.values())
    assert comparable_runs([plan], plan.runs(), ended) == of[0, 0] | of[0, 1], "one draw in two trials"
    assert comparable_runs([plan], plan.runs(), of[0, 0] | of[1, 0]) == of[0, 0] | of[1, 0], "two draws in one trial"


def test_a_run_of_two_plans_counts_where_its_draw_is_whole() -> None:
    small, large = replace(PLAN, algorithms=("ERM",), trials=1), replace(PLAN, algorithms=("ERM",), trials=2)
    ended = {run.id for run in small.runs()}
    ended |= {run.id for run in large.runs() if (run.draw, run.trial) == (0, 1)}
    assert comparable_runs([large], large.runs(), ended) == {run.id for run in large.runs() if run.draw == 0}
    assert comparable_runs([large, small], large.runs(), ended) == ended


def test_a_sweep_continues_from_what_was_published(sweep: Path, tmp_path: Path) -> None:
    publish(sweep, tmp_path / "published")
    runs = planned_runs([PLAN])
    begun = RunFolder(tmp_path / "again", runs[0])
    begun.create()
    begun.append(rows(runs[0], random.Random(9))[:4])
    begun.save_checkpoint({"next_step": 1})
    keep(tmp_path / "again", runs[1], random.Random(9))
    own = RunFolder(tmp_path / "again", runs[1]).read()
    assert unpack(tmp_path / "published", tmp_path / "again") == (len(runs) - 1, 1)
    assert RunFolder(tmp_path / "again", runs[1]).read() == own, "what had ended there stays"
    assert not begun.checkpoint_file.exists()
    assert sweep_progress(tmp_path / "again", runs).done == len(runs)
    for run in runs[2:] + runs[:1]:
        before, status = RunFolder(sweep, run).read()
        after, again = RunFolder(tmp_path / "again", run).read()
        assert again == status and again is not None
        assert (again.device, again.threads, again.date) == ("a card", 2, "2026-11-15")
        assert [row.accuracy for row in after] == [row.accuracy for row in before]
        assert [row.loss for row in after] == pytest.approx([row.loss for row in before], rel=1e-2)
        assert [row.seconds for row in after] == pytest.approx([row.seconds for row in before], abs=0.06)
    publish(tmp_path / "again", tmp_path / "twice")
    assert len(read_published(tmp_path / "twice")) == len(runs)


def test_a_run_that_is_being_trained_is_left_alone(sweep: Path, tmp_path: Path) -> None:
    publish(sweep, tmp_path / "published")
    kept = RunFolder(tmp_path / "again", PLAN.runs()[0])
    kept.create()
    kept.save_checkpoint({"step": 1})
    with RunLock(kept.path) as claim:
        assert unpack(tmp_path / "published", tmp_path / "again") == (len(PLAN.runs()) - 1, 1)
        claim.ensure_owned()
        assert kept.load_checkpoint() == {"step": 1} and kept.status() is None
    assert unpack(tmp_path / "published", tmp_path / "again") == (1, len(PLAN.runs()) - 1)
    assert kept.load_checkpoint() is None and not list(tmp_path.glob("again/*/claim.*"))


def test_a_run_that_failed_before_its_first_evaluation_is_published_as_such(tmp_path: Path) -> None:
    run = PLAN.runs()[0]
    kept = RunFolder(tmp_path / "sweep", run)
    kept.create()
    kept.append([Status(run.id, 0, "failed", "the roof fell in")])
    publish(tmp_path / "sweep", tmp_path / "published")
    assert sweep_progress(tmp_path / "published", [run]).failed[0].reason == "the roof fell in"
    assert collect(tmp_path / "published").curves == () and collect(tmp_path / "published").runs == (run,)


def test_penalties_audits_and_training_losses_are_published_too(tmp_path: Path) -> None:
    run = replace(PLAN.runs()[0], track=("penalties",))
    kept = RunFolder(tmp_path / "sweep", run)
    kept.create()
    found = [replace(row, training_loss=1.23456 + row.step) for row in rows(run, random.Random(3))]
    kept.append([*found, Status(run.id, run.steps - 1, "done", "")])
    for step in sorted({record.step for record in found}):
        kept.append_penalties([PenaltyRecord(run.id, step, "+80%", 1.23456789, 0.0, -2.5, 1e-9)])
    kept.save_audit({"sentence": "Follows colour."})
    publish(tmp_path / "sweep", tmp_path / "published")
    (one,) = read_published(tmp_path / "published")
    assert one.audit == {"sentence": "Follows colour."}
    assert one.penalties[0] == PenaltyRecord(run.id, 0, "+80%", 1.2346, 0.0, -2.5, 1e-9)
    unpack(tmp_path / "published", tmp_path / "again")
    again = RunFolder(tmp_path / "again", run)
    assert again.read_audit() == one.audit and tuple(again.read_penalties()) == one.penalties
    assert {row.training_loss for row in again.read()[0]} == set(one.training_loss)
    (published,), (own,) = collect(tmp_path / "published").curves, collect(tmp_path / "sweep").curves
    assert published.training_loss == pytest.approx(own.training_loss, rel=1e-2)


def test_the_commands(sweep: Path, tmp_path: Path, domainwise: Command) -> None:
    target = tmp_path / "published"
    told = domainwise("publish", sweep, target)
    assert told.status == 0 and f"{len(PLAN.runs())} runs" in told.out and "left out" not in told.out
    own, published = (domainwise("table", folder, "--selection", "all", "--json") for folder in (sweep, target))
    assert own.status == 0 and own.out == published.out
    text = (target / "tables.md").read_text()
    assert (
        "oracle validation" in text
        and f"{len(PLAN.runs())} runs: a card, 2 threads, domainwise abc, torch 2, 2026" in text
    )
    assert f"{len(PLAN.runs())} done" in domainwise("status", target).out
    assert domainwise("figure", "curves", target, "--out", tmp_path / "curves.svg").status == 0
    page = domainwise("report", target, "--out", tmp_path / "page.html")
    assert page.status == 0 and "2 algorithms" in (tmp_path / "page.html").read_text()
    unpacked = domainwise("unpack", target, tmp_path / "again", "--json")
    assert json.loads(unpacked.out) == {"written": len(PLAN.runs()), "there_already": 0}


def test_runs_without_provenance_are_published_and_counted(tmp_path: Path, domainwise: Command) -> None:
    for number, run in enumerate(replace(PLAN, pairs=False, draws=1, trials=1).runs()):
        keep(tmp_path / "sweep", run, random.Random(number))
        if number < 2:
            RunFolder(tmp_path / "sweep", run).rewind(run.steps)
            RunFolder(tmp_path / "sweep", run).append([Status(run.id, run.steps - 1, "done", "")])
    assert publish(tmp_path / "sweep", tmp_path / "a").without_provenance == 2
    told = " ".join(domainwise("publish", tmp_path / "sweep", tmp_path / "b").out.split())
    assert "2 of them lack provenance (device and software)" in told
    assert (
        json.loads(domainwise("publish", tmp_path / "sweep", tmp_path / "b", "--json").out)["without_provenance"] == 2
    )


def test_what_cannot_be_published_or_read(sweep: Path, tmp_path: Path, domainwise: Command) -> None:
    publish(sweep, tmp_path / "published")
    (tmp_path / "empty").mkdir()
    for words in (
        ("publish", tmp_path / "published", tmp_path / "x"),
        ("publish", tmp_path / "empty", tmp_path / "x"),
        ("publish", tmp_path / "nowhere", tmp_path / "x"),
        ("unpack", sweep, tmp_path / "x"),
        ("export-domainbed", tmp_path / "published", tmp_path / "x"),
    ):
        assert domainwise(*words).is_one_line_error, words
        assert not (tmp_path / "x").exists()
    before = sorted(sweep.iterdir())
    assert domainwise("publish", sweep, sweep).is_one_line_error and sorted(sweep.iterdir()) == before
    keep(tmp_path / "other", PLAN.runs()[0], random.Random(2))
    for words in (("publish", sweep, tmp_path / "other"), ("unpack", tmp_path / "published", tmp_path / "published")):
        before = sorted(words[2].iterdir())
        assert domainwise(*words).is_one_line_error and sorted(words[2].iterdir()) == before
    for damage in (b"\x1f\x8b", gzip.compress(b'{"run": 1}\n'), gzip.compress(b"nonsense\n")):
        (tmp_path / "empty" / FILE).write_bytes(damage)
        with pytest.raises(UserError, match=r"runs\.jsonl\.gz.*: restore it, or publish again"):
            collect(tmp_path / "empty")


KILLED = """
import os, signal, shutil, sys
from pathlib import Path
from domainwise.reports.publish import publish, unpack

name, source, base, *old = sys.argv[1:]
work = {"publish": publish, "unpack": unpack}[name]

def killed_at(last, target):
    count = 0
    def dies(event, arguments):
        nonlocal count
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir") and str(target) in str(arguments[0]):
            count += 1
            if count > last:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(dies)
    work(Path(source), target)

for last in range(1, 400, 3):
    target = Path(base) / str(last)
    if old:
        shutil.copytree(old[0], target)
    child = os.fork()
    if not child:
        killed_at(last, target)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def killed_everywhere(work: str, source: Path, base: Path, *old: Path) -> list[Path]:
    """The targets of a command that was killed at its first file, at its fourth and so on; of the last it was not."""
    base.mkdir()
    subprocess.run([sys.executable, "-c", KILLED, work, *map(str, (source, base, *old))], check=True)
    return sorted(base.iterdir(), key=lambda path: int(path.name))


def test_a_publication_is_old_or_new_wherever_it_is_killed(tmp_path: Path) -> None:
    small = replace(PLAN, algorithms=("ERM",), draws=1, trials=1, pairs=False)
    larger = replace(small, draws=2)
    luck = random.Random(3)
    for run in small.runs():
        keep(tmp_path / "sweep", run, luck)
    small.save(tmp_path / "sweep")
    publish(tmp_path / "sweep", tmp_path / "old")
    for run in larger.runs():
        if run.draw == 1:
            keep(tmp_path / "sweep", run, luck)
    larger.save(tmp_path / "sweep")
    publish(tmp_path / "sweep", tmp_path / "new")

    def contents(folder: Path) -> dict[str, bytes]:
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return {name: data for name, data in found.items() if ".tmp/" not in name}

    old, new = contents(tmp_path / "old"), contents(tmp_path / "new")
    targets = killed_everywhere("publish", tmp_path / "sweep", tmp_path / "killed", tmp_path / "old")
    for target in targets:
        collect(target)
    left = list(map(contents, targets))
    assert left[0] == old and left[-1] == new and all(one in (old, new) for one in left) and len(left) > 4


def test_no_half_of_a_run_counts_wherever_unpacking_is_killed(tmp_path: Path) -> None:
    small = replace(PLAN, algorithms=("ERM",), draws=1, trials=1, pairs=False)
    for run in small.runs():
        keep(tmp_path / "sweep", run, random.Random(3))
    publish(tmp_path / "sweep", tmp_path / "published")
    for target in killed_everywhere("unpack", tmp_path / "published", tmp_path / "killed"):
        found = collect(files.writable_folder(target))
        assert found.notes == () and {curve.run.id for curve in found.curves} == set(found.statuses)
        assert all(len(curve.steps) == 11 for curve in found.curves)
        unpack(tmp_path / "published", target)
        assert len(collect(target).statuses) == len(small.runs())
