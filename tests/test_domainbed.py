"""DomainBed's folders: its own collection written down once more, plainly, and random jobs judged by both."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from domainwise.data import DATASETS
from domainwise.errors import UserError
from domainwise.records import Record, RunFolder, Status
from domainwise.report.tables import AccuracyTable, tables
from domainwise.runs import Run
from domainwise.sweep.collection import Collection, collect
from domainwise.sweep.domainbed import collect_domainbed, export_domainbed, is_domainbed

RULES = ("training-domain", "leave-one-domain-out", "oracle")
ENVS = 3
PAIRS = [(0, 1), (0, 2), (1, 2)]
COLOURS = DATASETS.find("ColoredMNIST").domains


# DomainBed's collection, straight from the protocol page


def all_records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*/results.jsonl")) for line in path.open()]


def environments(record: dict[str, Any]) -> int:
    count = 0
    while f"env{count}_out_acc" in record:
        count += 1
    return count


def by_training_domains(env: int, records: list[dict[str, Any]]) -> tuple[float, float] | None:
    best = None
    for record in records:
        if record["args"]["test_envs"] != [env]:
            continue
        others = [record[f"env{i}_out_acc"] for i in range(environments(record)) if i != env]
        if best is None or sum(others) / len(others) > best[0]:
            best = sum(others) / len(others), record[f"env{env}_in_acc"]
    return best


def by_oracle(env: int, records: list[dict[str, Any]]) -> tuple[float, float] | None:
    last = None
    for record in records:
        if record["args"]["test_envs"] == [env] and (last is None or record["step"] >= last["step"]):
            last = record
    return last and (last[f"env{env}_out_acc"], last[f"env{env}_in_acc"])


def by_leaving_out(env: int, records: list[dict[str, Any]]) -> tuple[float, float] | None:
    best = None
    for step in sorted({record["step"] for record in records}):
        alone, left_out = [], {}
        for record in records:
            if record["step"] == step and record["args"]["test_envs"] == [env]:
                alone.append(record)
            elif record["step"] == step and len(record["args"]["test_envs"]) == 2:
                (further,) = set(record["args"]["test_envs"]) - {env}
                left_out[further] = record[f"env{further}_in_acc"]
        if len(alone) != 1 or len(left_out) < environments(alone[0]) - 1:
            continue
        score = sum(left_out.values()) / len(left_out)
        if best is None or score > best[0]:
            best = score, alone[0][f"env{env}_in_acc"]
    return best


JUDGES = {
    "training-domain": by_training_domains,
    "oracle": by_oracle,
    "leave-one-domain-out": by_leaving_out,
}


def selected(records: list[dict[str, Any]], rule: str) -> dict[tuple[str, str, int], dict[int, float]]:
    """{(dataset, algorithm, test environment): {trial: accuracy}}; of draws that look equally good, the last."""
    groups: dict[tuple[str, str, int, int], list[dict[str, Any]]] = {}
    for record in records:
        args = record["args"]
        for env in args["test_envs"]:
            groups.setdefault((args["dataset"], args["algorithm"], env, args["trial_seed"]), []).append(record)
    result: dict[tuple[str, str, int], dict[int, float]] = {}
    for (dataset, algorithm, env, trial), members in groups.items():
        best = None
        for draw in sorted({record["args"]["hparams_seed"] for record in members}):
            found = JUDGES[rule](env, [record for record in members if record["args"]["hparams_seed"] == draw])
            if found is not None and (best is None or found[0] >= best[0]):
                best = found
        if best is not None:
            result.setdefault((dataset, algorithm, env), {})[trial] = best[1]
    return result


def mean_and_error(values: list[float]) -> tuple[float, float, int]:
    return 100 * fmean(values), 100 * pstdev(values) / math.sqrt(len(values)), len(values)


# jobs


def write_job(
    folder: Path,
    test_envs: tuple[int, ...],
    hparams_seed: int = 0,
    trial: int = 0,
    *,
    algorithm: str = "ERM",
    dataset: str = "ColoredMNIST",
    steps: tuple[int, ...] = (0, 100, 200),
    envs: int = ENVS,
    done: bool = True,
    name: str = "",
    **accuracies: list[float],
) -> Path:
    """Accuracies by env0_in=[...], one per step; random ones where nothing is given."""
    chance = random.Random(repr((test_envs, hparams_seed, trial, algorithm, dataset, name)))
    args = {
        "algorithm": algorithm, "dataset": dataset, "test_envs": list(test_envs), "hparams_seed": hparams_seed,
        "trial_seed": trial, "seed": chance.randrange(2**31), "steps": None, "checkpoint_freq": None,
        "holdout_fraction": 0.2, "task": "domain_generalization", "output_dir": "somewhere",
    }  # fmt: skip
    lines = []
    for at, step in enumerate(steps):
        row = {"step": step, "epoch": step / 7, "step_time": 0.1, "mem_gb": 0.5, "loss": 0.3, "args": args}
        row["hparams"] = {"lr": 10 ** chance.uniform(-5, -3), "batch_size": 32, "nonlinear_classifier": False}
        for env in range(envs):
            for split in ("in", "out"):
                given = accuracies.get(f"env{env}_{split}")
                row[f"env{env}_{split}_acc"] = given[at] if given else chance.random()
        lines.append(json.dumps(row, sort_keys=True) + "\n")
    path = folder / (name or f"{dataset}-{algorithm}-{'+'.join(map(str, test_envs))}-{hparams_seed}-{trial}")
    path.mkdir(parents=True)
    (path / "results.jsonl").write_text("".join(lines))
    if done:
        (path / "done").write_text("done")
    return path


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


def column(dataset: str, env: int) -> str:
    return COLOURS[env] if dataset == "ColoredMNIST" else f"env{env}"


def numbers(table: AccuracyTable) -> dict[tuple[str, str, str], float]:
    """{(method, column or "average", "mean", "error" or "n"): value}."""
    cells = {(row.method, name): cell for row in table.rows for name, cell in row.cells.items()}
    cells |= {(row.method, "average"): row.average for row in table.rows if row.average is not None}
    return {(*place, part): getattr(cell, part) for place, cell in cells.items() for part in ("mean", "error", "n")}


def check(collection: Collection, records: list[dict[str, Any]], rule: str) -> dict[str, AccuracyTable]:
    """Every cell, and the averages of rows that have all trials of all environments, as DomainBed has them."""
    expected = selected(records, rule)
    found = {table.dataset: table for table in tables(collection, rule)}
    assert len(found) == len(tables(collection, rule)), "one table per dataset"
    cells = {
        (dataset, row.method, name): (cell.mean, cell.error, cell.n)
        for dataset, table in found.items()
        for row in table.rows
        for name, cell in row.cells.items()
    }
    assert cells.keys() == {(dataset, name, column(dataset, env)) for dataset, name, env in expected}
    for (dataset, name, env), trials in expected.items():
        assert cells[dataset, name, column(dataset, env)] == pytest.approx(
            mean_and_error(list(trials.values())), rel=0, abs=1e-9
        )
    for dataset, table in found.items():
        for row in table.rows:
            trials = [expected.get((dataset, row.method, env), {}) for env in range(ENVS)]
            if all(of_env.keys() == trials[0].keys() for of_env in trials):
                means = [fmean(of_env[trial] for of_env in trials) for trial in trials[0]]
                assert row.average is not None
                average = (row.average.mean, row.average.error, row.average.n)
                assert average == pytest.approx(mean_and_error(means), rel=0, abs=1e-9)
    return found


# reading


@pytest.mark.parametrize("rule", RULES)
def test_the_numbers_are_those_of_domainbeds_collection(sweep: Path, rule: str) -> None:
    collection = collect_domainbed(sweep)
    found = check(collection, all_records(sweep), rule)
    assert set(found) == {"ColoredMNIST", "Elsewhere"} and collection.notes == ()
    assert [row.method for row in found["ColoredMNIST"].rows] == ["ERM", "IRM"]
    assert all(row.average and row.average.n == 3 for table in found.values() for row in table.rows)
    assert found["ColoredMNIST"].columns == COLOURS and found["Elsewhere"].columns == ("env0", "env1", "env2")


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
        assert set(irm.cells) == {COLOURS[0], COLOURS[2]} and irm.average is None
        assert all(cell.n == 3 for cell in erm.cells.values()), "another draw of that trial is chosen"


def test_leave_one_domain_out_needs_every_pair(copy: Path) -> None:
    for job in copy.glob("ColoredMNIST-ERM-0+2-*"):
        shutil.rmtree(job)
    table = check(collect_domainbed(copy), all_records(copy), "leave-one-domain-out")["ColoredMNIST"]
    assert {row.method: set(row.cells) for row in table.rows} == {"ERM": {COLOURS[1]}, "IRM": set(COLOURS)}
    for job in copy.glob("*+*"):
        shutil.rmtree(job)
    assert tables(collect_domainbed(copy), "leave-one-domain-out") == []


def test_pairs_are_no_candidates_of_the_other_rules(tmp_path: Path) -> None:
    good, poor = [0.9] * 3, [0.2] * 3
    write_job(tmp_path, (0,), env0_in=[0.1] * 3, env0_out=poor, env1_out=poor, env2_out=poor)
    write_job(tmp_path, (0, 1), env0_in=good, env0_out=good, env1_out=good, env2_out=good)
    for rule in ("training-domain", "oracle"):
        (table,) = tables(collect_domainbed(tmp_path), rule)
        assert table.columns == (COLOURS[0],) and table.rows[0].cells[COLOURS[0]].mean == pytest.approx(10)


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
        assert table.rows[0].cells[COLOURS[0]].mean == pytest.approx(accuracy)


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
    assert len(collection.notes) == 5
    notes = {Path(note.split(": ")[0]).parent.name: note for note in collection.notes}
    assert "no evaluation" in notes["empty"] and "no evaluation" in notes["cut"]
    assert "2 of 2 lines" in notes["foreign"] and "line 1 lacks 'args'" in notes["foreign"]
    assert "line 1 is not a record" in notes["binary"] and "1 of " in notes[victim.parent.name]


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
    assert collection.curves == () and "3 of 3 lines passed over (line 1 lacks 'env0_in_acc')" in collection.notes[0]


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
    ours(tmp_path / "ours", Run.plan("ColoredMNIST", "ERM", 0))
    assert is_domainbed(tmp_path / "theirs") and is_domainbed(job), "a single job as well"
    assert len(collect_domainbed(job).curves) == 1
    assert not is_domainbed(tmp_path / "ours") and not is_domainbed(tmp_path) and not is_domainbed(tmp_path / "nowhere")
    shutil.copytree(job, tmp_path / "ours" / job.name)
    assert not is_domainbed(tmp_path / "ours")


# writing


def ours(folder: Path, run: Run, status: str | None = "done", steps: tuple[int, ...] = (0, 100, 200)) -> Run:
    """Records of a run, as a training would have left them."""
    chance = random.Random(run.id)
    kept = RunFolder(folder, run)
    kept.create()
    parts = [(domain, "out") for domain in run.train_domains]
    parts += [(domain, split) for domain in (*run.validation_domains, *run.test_domains) for split in ("in", "out")]
    if not run.held_out:
        parts = [part for part in parts if part[1] == "in"]
    rows: list[Record | Status] = []
    for step in steps:
        rows += [Record(run.id, step, *part, chance.random(), 1.0, 2.0 + step / 10) for part in parts]
    if status is not None:
        rows.append(Status(run.id, steps[-1], status, ""))  # type: ignore[arg-type]
    kept.append(rows)
    return run


@pytest.fixture(scope="module")
def our_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    for algorithm in ("ERM", "DAT"):
        for trial in range(2):
            for draw in range(2):
                for test in [(0,), (1,), (2,), *PAIRS]:
                    plan = {"draw": draw, "trial": trial, "steps": 201}
                    ours(folder, Run.plan("ColoredMNIST", algorithm, test, **plan))
    ours(folder, Run.plan("ColoredMNIST", "ERM", 0, draw=3, steps=201), "diverged", (0, 100))
    ours(folder, Run.plan("ColoredMNIST", "ERM", 1, draw=3, steps=201), None, (0,))
    ours(folder, Run.plan("ColoredMNIST", "ERM", 2, draw=3, steps=201), None, ())
    ours(folder, Run.plan("ColoredMNIST", "DAT", 2, steps=201, variant="eps 1", hparams={"eps": 1.0}))
    return folder


def test_exported_runs_give_the_same_tables(our_sweep: Path, tmp_path: Path) -> None:
    assert export_domainbed(our_sweep, tmp_path / "theirs") == 51
    assert is_domainbed(tmp_path / "theirs")
    back, own = collect_domainbed(tmp_path / "theirs"), collect(our_sweep)
    for rule in RULES:
        (theirs,), (mine,) = tables(back, rule), tables(own, rule)
        assert [theirs.columns, *(row.steps for row in theirs.rows)] == [
            mine.columns,
            *(row.steps for row in mine.rows),
        ]
        assert [(row.draws, row.trials) for row in theirs.rows] == [(row.draws, row.trials) for row in mine.rows]
        assert numbers(theirs) == pytest.approx(numbers(mine), rel=0, abs=1e-9)
        check(back, all_records(tmp_path / "theirs"), rule)
    assert {row.method for row in tables(back, "oracle")[0].rows} == {"ERM", "DAT", "DAT (eps 1)"}


def test_exported_records_are_what_domainbed_reads(tmp_path: Path) -> None:
    plan = {"draw": 2, "trial": 1, "seed": 5, "steps": 201, "evaluate_every": 50}
    run = ours(tmp_path / "ours", Run.plan("ColoredMNIST", "DAT", [2, 0], **plan))
    export_domainbed(tmp_path / "ours", tmp_path / "theirs")
    rows = all_records(tmp_path / "theirs")
    assert [row["step"] for row in rows] == [0, 100, 200]
    assert rows[1].keys() == {
        "step", "epoch", "step_time", "mem_gb", "hparams", "args",
        "env0_out_acc", "env1_out_acc", "env2_out_acc", "env0_in_acc", "env2_in_acc",
    }  # fmt: skip
    assert rows[1]["args"] == {
        "algorithm": "DAT", "dataset": "ColoredMNIST", "test_envs": [0, 2], "hparams_seed": 2, "trial_seed": 1,
        "seed": 5, "steps": 201, "checkpoint_freq": 50, "holdout_fraction": 0.2, "task": "domain_generalization",
        "uda_holdout_fraction": 0, "data_dir": "", "output_dir": str(tmp_path / "theirs" / run.id),
    }  # fmt: skip
    assert rows[1]["hparams"] == {name: value for name, value in run.hparams.items() if value is not None}
    assert [row["step_time"] for row in rows] == pytest.approx([2.0, 0.1, 0.1])
    records = {(r.step, r.domain, r.split): r.accuracy for r in RunFolder(tmp_path / "ours", run).read()[0]}
    assert rows[1]["env1_out_acc"] == records[100, "+80%", "out"]
    assert rows[1]["env2_in_acc"] == records[100, "-90%", "in"]


def test_exported_json_is_standard(our_sweep: Path, tmp_path: Path) -> None:
    export_domainbed(our_sweep, tmp_path / "theirs")
    for path in (tmp_path / "theirs").glob("*/results.jsonl"):
        text = path.read_text()
        assert text.endswith("}\n") and "null" not in text
        for line in text.splitlines():
            json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


def test_only_finished_runs_are_done_and_nothing_else_is_left(our_sweep: Path, tmp_path: Path) -> None:
    export_domainbed(our_sweep, tmp_path / "theirs")
    statuses = collect(our_sweep).statuses
    for path in (tmp_path / "theirs").iterdir():
        finished = path.name in statuses and statuses[path.name].status == "done"
        assert {file.name for file in path.iterdir()} == ({"results.jsonl", "done"} if finished else {"results.jsonl"})
    assert "2 of 51 jobs" in collect_domainbed(tmp_path / "theirs").notes[0]


def test_a_target_that_holds_something_is_refused(our_sweep: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep me")
    for target in (full, full / "mine.txt"):
        with pytest.raises(UserError, match=r"full.*not an empty folder"):
            export_domainbed(our_sweep, target)
    assert [file.name for file in full.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert export_domainbed(our_sweep, tmp_path / "empty") == 51


def test_what_the_format_cannot_describe_is_left_out(tmp_path: Path) -> None:
    folder, all_but = tmp_path / "ours", Run.plan("ColoredMNIST", "ERM", 0)
    ours(folder, Run.plan("ColoredMNIST", "ERM", 0, train_domains=[1], setting="single"))
    ours(folder, Run.plan("ColoredMNIST", "ERM", [0, 2], setting="single"))
    ours(folder, Run.plan("ColoredMNIST", "ERM", 0, train_domains=[1]))
    ours(
        folder, replace(all_but, validation_domains=all_but.train_domains[:1], train_domains=all_but.train_domains[1:])
    )
    ours(folder, replace(all_but, held_out=0.0))
    with pytest.raises(UserError, match="nothing to export"):
        export_domainbed(folder, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
    ours(folder, all_but)
    assert export_domainbed(folder, tmp_path / "theirs") == 1


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 301}, {"network": "small-cnn"}, {"steps": 301, "draw": 1}])
def test_searches_that_domainbed_would_mix_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    plan: dict[str, Any] = {"steps": 201}
    ours(tmp_path / "ours", Run.plan("ColoredMNIST", "ERM", 0, **plan))
    ours(tmp_path / "ours", Run.plan("ColoredMNIST", "ERM", 0, **plan | change))
    with pytest.raises(UserError, match="cannot tell run"):
        export_domainbed(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_datasets_we_do_not_know_are_exported_with_their_domains_by_name(tmp_path: Path) -> None:
    known = Run.plan("ColoredMNIST", "ERM", 0, steps=201)
    names = {"+90%": "paris", "+80%": "rome", "-90%": "berlin"}
    for i in range(3):
        test = tuple(names.values())[i]
        train = tuple(name for name in names.values() if name != test)
        ours(tmp_path / "ours", replace(known, dataset="Cities", train_domains=train, test_domains=(test,)))
    assert export_domainbed(tmp_path / "ours", tmp_path / "theirs") == 3
    (theirs,) = tables(collect_domainbed(tmp_path / "theirs"), "oracle")
    (mine,) = tables(collect(tmp_path / "ours"), "oracle")
    assert mine.columns == ("berlin", "paris", "rome")
    assert list(theirs.rows[0].cells.values()) == [mine.rows[0].cells[name] for name in mine.columns]
