"""DomainBed's folders: random jobs judged by its own collection and by ours, and jobs that are damaged."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from domainbed import (
    COLOURS,
    PAIRS,
    RULES,
    all_records,
    check,
    ours,
    write_job,
)
from domainwise.core.errors import UserError
from domainwise.protocol.selection import Column
from domainwise.sweeps.collection import Collection
from domainwise.sweeps.domainbed import collect_domainbed, is_domainbed
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.tables import tables


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, three algorithms, three trials, four draws, pairs, jobs judged at uneven steps or cut short."""
    folder = tmp_path_factory.mktemp("sweep")
    chance = random.Random(0)
    for dataset, algorithm in [("ColoredMNIST", "ERM"), ("ColoredMNIST", "IRM"), ("Elsewhere", "SomethingNew")]:
        for trial in range(3):
            for draw in range(4):
                for test_envs in [(0,), (1,), (2,), *PAIRS]:
                    steps = tuple(sorted(chance.sample(range(0, 700, 100), chance.randint(4, 7))))
                    write_job(folder, test_envs, draw, trial, algorithm=algorithm, dataset=dataset, steps=steps)
    return folder


@pytest.fixture
def copy(sweep: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sweep, tmp_path / "copy")


@pytest.mark.parametrize("rule", RULES)
def test_the_numbers_are_those_of_domainbeds_collection(sweep: Path, rule: str) -> None:
    collection = collect_domainbed(sweep)
    found = check(collection, all_records(sweep), rule)
    assert set(found) == {"ColoredMNIST", "Elsewhere"} and collection.notes == ()
    assert [str(row.method) for row in found["ColoredMNIST"].rows] == ["ERM", "IRM"]
    assert all(row.average and row.average.n == 3 for table in found.values() for row in table.rows)
    columns = {name: tuple(map(str, table.columns)) for name, table in found.items()}
    assert columns == {"ColoredMNIST": COLOURS, "Elsewhere": ("env0", "env1", "env2")}


@pytest.mark.parametrize("seed", range(3))
def test_the_numbers_agree_whatever_jobs_are_missing(copy: Path, seed: int) -> None:
    chance = random.Random(seed)
    for job in sorted(copy.iterdir()):
        if chance.random() < 0.4:
            shutil.rmtree(job)
    for rule in RULES:
        check(collect_domainbed(copy), all_records(copy), rule)


def test_cells_without_jobs_are_missing_and_so_is_their_average(copy: Path) -> None:
    for job in copy.glob("ColoredMNIST-IRM-1-*"):
        shutil.rmtree(job)
    for job in copy.glob("ColoredMNIST-ERM-*0-2"):
        shutil.rmtree(job)
    for rule in RULES:
        erm, irm = check(collect_domainbed(copy), all_records(copy), rule)["ColoredMNIST"].rows
        assert set(irm.cells) == {Column(COLOURS[0]), Column(COLOURS[2])} and irm.average is None
        assert all(cell.n == 3 for cell in erm.cells.values()), "another draw of that trial is chosen"


def test_leave_one_domain_out_needs_every_pair(copy: Path) -> None:
    for job in copy.glob("ColoredMNIST-ERM-0+2-*"):
        shutil.rmtree(job)
    table = check(collect_domainbed(copy), all_records(copy), "leave-one-domain-out")["ColoredMNIST"]
    assert {str(row.method): {str(column) for column in row.cells} for row in table.rows} == {
        "ERM": {COLOURS[1]},
        "IRM": set(COLOURS),
    }
    for job in copy.glob("*+*"):
        shutil.rmtree(job)
    assert tables(collect_domainbed(copy), "leave-one-domain-out") == []


def test_pairs_are_no_candidates_of_the_other_rules(tmp_path: Path) -> None:
    good, poor = [0.9] * 3, [0.2] * 3
    write_job(tmp_path, (0,), env0_in=[0.1] * 3, env0_out=poor, env1_out=poor, env2_out=poor)
    write_job(tmp_path, (0, 1), env0_in=good, env0_out=good, env1_out=good, env2_out=good)
    for rule in ("training-domain", "oracle"):
        (table,) = tables(collect_domainbed(tmp_path), rule)
        assert table.columns == (Column(COLOURS[0]),) and table.rows[0].cells[Column(COLOURS[0])].mean == pytest.approx(
            10
        )


def test_by_hand(tmp_path: Path) -> None:
    trained = {"env1_out": [0, 0.8, 0.1], "env2_out": [0, 0.6, 0.1]}
    write_job(tmp_path, (0,), 0, **trained, env0_in=[0.1, 0.2, 0.3], env0_out=[1, 1, 0.5])
    trained = {"env1_out": [0, 0.9, 0.1], "env2_out": [0, 0.4, 0.1]}
    write_job(tmp_path, (0,), 1, **trained, env0_in=[0.4, 0.5, 0.6], env0_out=[0, 0, 0.6])
    for draw, scores in enumerate(([0.9, 0.1, 0.1], [0.1, 0.1, 0.8])):
        write_job(tmp_path, (0, 1), draw, env1_in=scores)
        write_job(tmp_path, (0, 2), draw, env2_in=scores)
    expected = {"training-domain": 20, "oracle": 60, "leave-one-domain-out": 10}
    for rule, accuracy in expected.items():
        (table,) = tables(collect_domainbed(tmp_path), rule)
        assert table.rows[0].cells[Column(COLOURS[0])].mean == pytest.approx(accuracy)


def test_a_run_describes_its_job(tmp_path: Path) -> None:
    write_job(
        tmp_path, (2, 0), 3, 1, dataset="RotatedMNIST", envs=4, algorithm="SomethingNew", steps=(0, 300, 600, 601)
    )
    (curve,) = collect_domainbed(tmp_path).curves
    run = curve.run
    assert (run.dataset, run.algorithm, run.draw, run.trial) == ("RotatedMNIST", "SomethingNew", 3, 1)
    assert (run.test_domains, run.train_domains) == (("env0", "env2"), ("env1", "env3")), "not our six domains"
    assert (run.steps, run.evaluate_every, curve.steps) == (602, 1, (0, 300, 600, 601))
    assert set(run.hparams) == {"lr", "batch_size", "nonlinear_classifier"} and run.hparams["batch_size"] == 32


def test_a_job_run_twice_counts_as_domainbed_counts_it(copy: Path) -> None:
    """Its records are put together: both are chosen from, the oracle takes the later of two last evaluations."""
    for name, test_envs in [("ColoredMNIST-ERM-1-2-0", (1,)), ("zz", (1,)), ("zz-pair", (0, 1))]:
        shutil.rmtree(copy / name, ignore_errors=True)
        write_job(copy, test_envs, 2, 0, name=name, steps=(0, 600) if name == "zz" else (100, 200, 600))
    collection = collect_domainbed(copy)
    for rule in ("training-domain", "oracle"):
        check(collection, all_records(copy), rule)
    assert len({curve.run.id for curve in collection.curves}) == len(collection.curves)


def test_a_job_begun_again_in_the_same_file(tmp_path: Path) -> None:
    for draw in range(3):
        first = write_job(tmp_path, (0,), draw, name=f"first{draw}")
        again = write_job(tmp_path / "again", (0,), draw, steps=(0, 100), name=f"again{draw}")
        with (first / "results.jsonl").open("a") as file:
            file.write((again / "results.jsonl").read_text())
    for rule in ("training-domain", "oracle"):
        check(collect_domainbed(tmp_path), all_records(tmp_path), rule)


@pytest.mark.parametrize("rule", RULES)
def test_of_draws_that_look_equally_good_the_highest_is_taken(tmp_path: Path, rule: str) -> None:
    for draw in range(3):
        same = dict.fromkeys(("env0_out", "env1_out", "env2_out"), [0.5] * 3)
        write_job(tmp_path, (0,), draw, env0_in=[draw / 10] * 3, **same)
        write_job(tmp_path, (0, 1), draw, env1_in=[0.5] * 3)
        write_job(tmp_path, (0, 2), draw, env2_in=[0.5] * 3)
    check(collect_domainbed(tmp_path), all_records(tmp_path), rule)


def test_leave_one_domain_out_passes_over_steps_judged_twice(tmp_path: Path) -> None:
    write_job(tmp_path, (0,), steps=(0, 100, 200), name="a", env0_in=[0.1, 0.2, 0.3])
    write_job(tmp_path, (0,), steps=(100,), name="b", env0_in=[0.4])
    write_job(tmp_path, (0, 1), env1_in=[0.5, 0.9, 0.6])
    write_job(tmp_path, (0, 2), env2_in=[0.5, 0.9, 0.6])
    check(collect_domainbed(tmp_path), all_records(tmp_path), "leave-one-domain-out")


# damage


def test_a_last_line_cut_short_is_dropped(copy: Path) -> None:
    victim = copy / "ColoredMNIST-ERM-1-2-0" / "results.jsonl"
    lines = victim.read_text().splitlines(keepends=True)
    victim.write_text("".join(lines[:-1]) + lines[-1][:80])
    collection = collect_domainbed(copy)
    assert collection.notes == ()
    victim.write_text("".join(lines[:-1]))
    for rule in RULES:
        check(collection, all_records(copy), rule)


def test_damage_is_named_and_the_rest_is_read(copy: Path) -> None:
    whole = all_records(copy)
    for name, text in {
        "empty": "",
        "foreign": '{"epoch": 3, "accuracy": 0.4}\n[1, 2]\n',
        "binary": "\x00\x01\n",
        "cut": '{"step": 0, ',
    }.items():
        (copy / name).mkdir()
        (copy / name / "results.jsonl").write_text(text)
        (copy / name / "done").touch()
    (copy / "notes.txt").write_text("not a job")
    (copy / "logs").mkdir()
    (copy / "unreadable" / "results.jsonl").mkdir(parents=True)
    victim = copy / "ColoredMNIST-ERM-1-2-0" / "results.jsonl"
    victim.write_text("{damaged}\n" + victim.read_text())
    collection = collect_domainbed(copy)
    for rule in RULES:
        check(collection, whole, rule)
    assert len(collection.notes) == 7
    notes = {Path(note.split(": ")[0]).parent.name: note for note in collection.notes}
    assert "cannot be read" in notes["unreadable"]
    assert "no evaluation" in notes["empty"] and "no evaluation" in notes["cut"]
    assert "2 of 2 lines" in notes["foreign"] and "line 1 lacks 'args'" in notes["foreign"]
    assert "line 1: cut short or no JSON" in notes["binary"] and "1 of " in notes[victim.parent.name]


@pytest.mark.parametrize(
    "change",
    [
        {"env0_in_acc": None},
        {"env1_out_acc": float("nan")},
        {"env1_out_acc": "0.5"},
        {"env2_out_acc": 50.0},
        {"step": "last"},
        {"args": None},
        {"args": {"dataset": "D", "algorithm": "A"}},
        {
            "env3_in_acc": 0.5,
            "args": {"dataset": "D", "algorithm": "A", "test_envs": [3], "hparams_seed": 0, "trial_seed": 0},
        },
        {"args": {"dataset": "D", "algorithm": "A", "test_envs": [3], "hparams_seed": 0, "trial_seed": 0}},
        {"args": {"dataset": "D", "algorithm": "A", "test_envs": [0, 0], "hparams_seed": 0, "trial_seed": 0}},
        {"args": {"dataset": "D", "algorithm": "A", "test_envs": [], "hparams_seed": 0, "trial_seed": 0}},
        {"args": {"dataset": ["D"], "algorithm": "A", "test_envs": [0], "hparams_seed": 0, "trial_seed": 0}},
        {"args": {"dataset": "D", "algorithm": "A", "test_envs": [0], "hparams_seed": "0", "trial_seed": 0}},
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write_job(tmp_path, (0,)) / "results.jsonl"
    first, second, third = path.read_text().splitlines()
    path.write_text("\n".join([first, json.dumps(json.loads(second) | change), third, ""]))
    collection = collect_domainbed(tmp_path)
    assert [curve.steps for curve in collection.curves] == [(0, 200)]
    assert len(collection.notes) == 1 and str(path) in collection.notes[0] and "line 2" in collection.notes[0]


def test_missing_test_accuracies_are_named(tmp_path: Path) -> None:
    path = write_job(tmp_path, (0,)) / "results.jsonl"
    path.write_text(path.read_text().replace("env0_in_acc", "env0_in_accuracy"))
    collection = collect_domainbed(tmp_path)
    assert collection.curves == () and "3 of 3 lines skipped (line 1 lacks 'env0_in_acc')" in collection.notes[0]


def test_an_unfinished_job_counts_and_is_noted(tmp_path: Path) -> None:
    write_job(tmp_path, (0,), 0)
    write_job(tmp_path, (0,), 1, done=False, steps=(0, 100))
    collection = collect_domainbed(tmp_path)
    for rule in RULES:
        check(collection, all_records(tmp_path), rule)
    assert len(collection.notes) == 1 and "1 of 2 jobs" in collection.notes[0]
    done = {curve.run.draw: curve.run.id in collection.statuses for curve in collection.curves}
    assert done == {0: True, 1: False}


def test_no_jobs(tmp_path: Path) -> None:
    assert collect_domainbed(tmp_path) == Collection((), {}, ())
    assert not is_domainbed(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        collect_domainbed(tmp_path / "nowhere")


def test_folders_are_told_apart(tmp_path: Path) -> None:
    job = write_job(tmp_path / "theirs", (0,))
    ours(tmp_path / "ours", plan_run("ColoredMNIST", "ERM", 0))
    assert is_domainbed(tmp_path / "theirs") and is_domainbed(job), "a single job as well"
    assert len(collect_domainbed(job).curves) == 1
    assert not is_domainbed(tmp_path / "ours") and not is_domainbed(tmp_path) and not is_domainbed(tmp_path / "nowhere")
    shutil.copytree(job, tmp_path / "ours" / job.name)
    assert not is_domainbed(tmp_path / "ours")
