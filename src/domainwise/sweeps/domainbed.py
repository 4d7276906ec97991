"""DomainBed's output folders: one folder per job with `results.jsonl` and, once it ended, `done`."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.parsing import Count, Fraction, check, parse_any, read_file
from domainwise.core.phrasing import counted
from domainwise.data.catalogue import DATASETS
from domainwise.protocol.records import Status
from domainwise.protocol.runs import HELD_OUT, Run
from domainwise.protocol.selection import Curve
from domainwise.sweeps.collection import Collection, collect

RESULTS, DONE = "results.jsonl", "done"
LARGEST = 1 << 30
"""Bytes of a job's results."""
NETWORK = "domainbed"
"""Stands for the network of a job: its records do not name it."""
NAMES = {"Camelyon17": "WILDSCamelyon"}
"""{a dataset: DomainBed's name of it} where it has another."""
OUR_NAMES = {theirs: ours for ours, theirs in NAMES.items()}
NOT_NUMBERED = ("FMoW",)
"""Datasets whose domains DomainBed numbers by the order of their images, which only the data say."""


class Job(NamedTuple):
    """The key by which DomainBed's collection groups records. A job run twice is one job with more records."""

    dataset: str
    algorithm: str
    environments: int
    test_envs: tuple[int, ...]
    hparams_seed: int
    trial_seed: int


class JobEvaluation(NamedTuple):
    """One line: `out` accuracies of all environments, `in` accuracies of the test environments, in their order."""

    step: int
    seen: tuple[float, ...]
    unseen: tuple[float, ...]


@dataclass
class Results:
    """All records of one job."""

    hparams: dict[str, Any]
    held_out: float
    evaluations: list[JobEvaluation] = field(default_factory=list)
    done: bool = True


def is_domainbed(folder: Path) -> bool:
    """Whether a folder holds jobs of DomainBed (or is one) and no runs of ours."""
    return bool(_results(folder)) and not any(folder.glob("*/run.json"))


def collect_any(folder: Path) -> Collection:
    """Reads a folder of ours or of DomainBed's."""
    return collect_domainbed(folder) if is_domainbed(folder) else collect(folder)


def collect_results(folder: Path, partial: bool = False) -> Collection:
    """Reads a folder for its results: without runs that failed or are not finished, unless `partial`.

    Jobs of DomainBed are all counted, as its own collection does.
    """
    everything = collect_any(folder)
    finished = everything if partial else everything.finished()
    if everything.curves and not finished.curves:
        states = everything.completeness().counts
        raise UserError(
            f"{folder}: none of {counted(len(everything.runs), 'run')} there is finished ({states}): wait for one, "
            "or look at partial results",
            argument="partial",
        )
    return finished


def collect_domainbed(folder: Path) -> Collection:
    """Reads every job in a folder as DomainBed's own collection does, which looks at records only, never at `done`.

    The Runs describe jobs for grouping and selection and cannot be trained. As in DomainBed's tables, jobs of one
    dataset belong together however far they came: they share the steps of the longest. A job's own seed, which differs
    with the test environments and would part a job from those that leave out one more, is left out. A
    line that is not a record is skipped with a note; a last line cut short, without.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the output folder of a DomainBed sweep")
    jobs: dict[Job, Results] = {}
    notes, unfinished, paths = [], 0, _results(folder)
    for path in paths:
        done = (path.parent / DONE).exists()
        unfinished += not done
        notes += _read(path, jobs, done)
    if unfinished:
        notes.append(f"{folder}: {unfinished} of {len(paths)} jobs have no file {DONE!r}: their results are partial")
    steps: dict[str, int] = {}
    for job, results in jobs.items():
        steps[job.dataset] = max(steps.get(job.dataset, 0), *(e.step + 1 for e in results.evaluations))
    curves, statuses = [], {}
    for job in sorted(jobs):
        curve = _curve(job, jobs[job], steps[job.dataset])
        curves.append(curve)
        if jobs[job].done:
            statuses[curve.run.id] = Status(curve.run.id, curve.steps[-1], "done", "")
    return Collection(tuple(curves), statuses, tuple(notes), tuple(curve.run for curve in curves), jobs=True)


def _results(folder: Path) -> list[Path]:
    return [path for path in (folder / RESULTS, *sorted(folder.glob(f"*/{RESULTS}"))) if os.path.lexists(path)]


def _read(path: Path, jobs: dict[Job, Results], done: bool) -> list[str]:
    """Adds a file's evaluations to those of their jobs; returns notes on skipped lines."""
    try:
        lines = read_file(path, "restore it", LARGEST).split(b"\n")
    except files.Unreadable as error:
        return [f"{path}: skipped ({error.brief})"]
    read, faults = 0, []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_any(line, f"line {number}", "not a record of DomainBed", nan=True)  # losses may be NaN
            args = _arguments(row, f"line {number}")
            job, evaluation = _parse(row, args, f"line {number}")
        except UserError as error:
            if number < len(lines):
                faults.append(str(error))
            continue
        if job not in jobs:
            jobs[job] = Results(_scalars(row.get("hparams")), args.holdout_fraction)
        jobs[job].evaluations.append(evaluation)
        jobs[job].done &= done
        read += 1
    if faults:
        return [f"{path}: {len(faults)} of {read + len(faults)} lines skipped ({faults[0]})"]
    return [] if read else [f"{path}: skipped (no evaluation in it)"]


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a job that we use."""

    dataset: str
    algorithm: str
    test_envs: tuple[Count, ...]
    hparams_seed: Count
    trial_seed: Count
    holdout_fraction: Fraction = HELD_OUT


def _arguments(row: Any, where: str) -> _Arguments:
    """DomainBed writes others besides."""
    args = row.get("args") if isinstance(row, dict) else None
    if not isinstance(args, dict):
        raise UserError(f"{where} lacks 'args'")
    names = {one.name for one in fields(_Arguments)}
    return check({name: value for name, value in args.items() if name in names}, _Arguments, where, "restore it")


def _parse(row: Mapping[str, Any], args: _Arguments, where: str) -> tuple[Job, JobEvaluation]:
    """The environments are found by counting up `env{i}_out_acc` until one is missing."""
    count = next(i for i in itertools.count() if f"env{i}_out_acc" not in row)
    test = tuple(sorted(args.test_envs))
    if not test or len(set(test)) < len(test) or not all(env < count for env in test):
        raise UserError(f"{where}: test environments {list(test)} of {count}")
    names = [*(f"env{i}_out_acc" for i in range(count)), *(f"env{i}_in_acc" for i in test)]
    if missing := [name for name in (*names, "step") if name not in row]:
        raise UserError(f"{where} lacks {missing[0]!r}")
    accuracy = check({name: row[name] for name in names}, dict[str, Fraction], where, "restore it")
    step = check(row["step"], int, f'{where}, "step"', "restore it")
    values = tuple(accuracy.values())
    dataset = OUR_NAMES.get(args.dataset, args.dataset)
    job = Job(dataset, args.algorithm, count, test, args.hparams_seed, args.trial_seed)
    return job, JobEvaluation(step, values[:count], values[count:])


def _scalars(hparams: Any) -> dict[str, Any]:
    items = hparams.items() if isinstance(hparams, dict) else ()
    return {name: value for name, value in items if value is None or isinstance(value, (str, int, float))}


def _curve(job: Job, results: Results, steps: int) -> Curve:
    """One curve of all records, by step; where a step was evaluated twice, both count, the later read last."""
    names = [f"env{i}" for i in range(job.environments)]
    if job.dataset in DATASETS and len(DATASETS[job.dataset].domains) == job.environments:
        names = list(DATASETS[job.dataset].domains)
    evaluations = sorted(results.evaluations, key=lambda evaluation: evaluation.step)
    at = tuple(evaluation.step for evaluation in evaluations)
    run = Run(
        dataset=job.dataset,
        algorithm=job.algorithm,
        train_domains=tuple(name for i, name in enumerate(names) if i not in job.test_envs),
        test_domains=tuple(names[i] for i in job.test_envs),
        hparams=results.hparams,
        network=NETWORK,
        steps=steps,
        evaluate_every=min((b - a for a, b in itertools.pairwise(sorted(set(at)))), default=steps),
        draw=job.hparams_seed,
        trial=job.trial_seed,
        held_out=results.held_out,
    )
    accuracy = {(name, "out"): np.array([e.seen[i] for e in evaluations]) for i, name in enumerate(names)}
    for i, name in enumerate(run.test_domains):
        accuracy[name, "in"] = np.array([e.unseen[i] for e in evaluations])
    return Curve(run, at, accuracy)
