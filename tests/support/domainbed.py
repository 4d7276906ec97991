"""DomainBed for tests: its own collection written down once more, plainly, and jobs as it leaves them."""

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from domainwise.data.catalogue import DATASETS
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.accuracy_table import AccuracyTable, Row
from domainwise.sweeps.collection import Collection
from domainwise.sweeps.tables import tables
from handmade_records import evaluated_splits

RULES = ("training-domain", "leave-one-domain-out", "oracle")
ENVS = 3
PAIRS = [(0, 1), (0, 2), (1, 2)]
COLOURS = DATASETS["ColoredMNIST"].domains


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


def column(dataset: str, env: int) -> str:
    return COLOURS[env] if dataset == "ColoredMNIST" else f"env{env}"


def numbers(rows: Iterable[Row]) -> dict[tuple[str, str, str], float]:
    """{(method, column or "average", "mean", "bar" or "n"): value}; "bar" is the error, 0 of a single value."""
    cells = {(str(row.method), str(name)): cell for row in rows for name, cell in row.cells.items()}
    cells |= {(str(row.method), "average"): row.average for row in rows if row.average is not None}
    return {(*place, part): getattr(cell, part) for place, cell in cells.items() for part in ("mean", "bar", "n")}


def check(collection: Collection, records: list[dict[str, Any]], rule: str) -> dict[str, AccuracyTable]:
    """Every cell, and the averages of rows that have all trials of all environments, as DomainBed has them."""
    expected = selected(records, rule)
    found = {table.dataset: table for table in tables(collection, rule)}
    assert len(found) == len(tables(collection, rule)), "one table per dataset"
    cells = {
        (dataset, str(row.method), str(name)): (cell.mean, cell.bar, cell.n)
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
            trials = [expected.get((dataset, str(row.method), env), {}) for env in range(ENVS)]
            if trials[0] and all(of_env.keys() == trials[0].keys() for of_env in trials):
                means = [fmean(of_env[trial] for of_env in trials) for trial in trials[0]]
                assert row.average is not None
                average = (row.average.mean, row.average.bar, row.average.n)
                assert average == pytest.approx(mean_and_error(means), rel=0, abs=1e-9)
    return found


def ours(folder: Path, run: Run, status: str | None = "done", steps: tuple[int, ...] = (0, 100, 200)) -> Run:
    """Records of a run, as a training would have left them."""
    chance = random.Random(run.id)
    run_folder = RunFolder(folder, run)
    run_folder.create()
    parts = [part for part in evaluated_splits(run) if run.held_out or part[1] == "in"]
    rows: list[Record | Status] = []
    for step in steps:
        rows += [Record(run.id, step, *part, chance.random(), 1.0, 2.0 + step / 10) for part in parts]
    if status is not None:
        rows.append(Status(run.id, steps[-1], status, ""))  # type: ignore[arg-type]
    run_folder.append(rows)
    return run
