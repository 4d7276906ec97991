"""Publishing a sweep's records, and putting published ones back into a folder where the sweep continues."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.locks import RunLock, RunLocked
from domainwise.core.phrasing import counted
from domainwise.protocol.metrics import FIELDS
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import RULES, Curve
from domainwise.sweeps.collection import Collection, collect
from domainwise.sweeps.plan import Plan, saved_plans
from domainwise.sweeps.published import (
    FILE,
    TABLES,
    PublishedRun,
    in_published_order,
    is_published,
    read_published,
    write_published,
)
from domainwise.sweeps.reading import parse_records
from domainwise.sweeps.tables import tables

COLUMNS = (*FIELDS, "seconds")


@dataclass(frozen=True)
class Publication:
    """The file written, its runs, and how many were left out: unfinished ones, and ended ones of unfinished draws.

    Of the runs `without_provenance` nobody can say on which device and with which software they were made.
    """

    file: Path
    runs: int
    unfinished: int
    of_unfinished_draws: int
    without_provenance: int
    notes: tuple[str, ...] = ()
    """What could not be read."""


def publish(folder: Path, target: Path) -> Publication:
    """Writes the records of a sweep's folder into another, with its plans and its tables under every selection rule.

    Of a plan, only draws whose runs have all ended are published: what is compared was searched equally. Where there is
    no such draw yet, only the first trials are, of draws that ended in all of those.
    """
    if is_published(folder):
        raise UserError(f"{folder} holds published records: give the sweep's own folder")
    if any(target.glob("*/run.json")):
        raise UserError(f"{target} is a sweep's own folder: publish into another")
    collection = collect(folder)
    plans = list(saved_plans(folder))
    ended = {run.id for run in collection.runs if run.id in collection.statuses}
    comparable = comparable_runs(plans, collection.runs, ended)
    if not comparable:
        raise UserError(f"{folder}: nothing to publish; no draw of a sweep there has ended in all its runs")
    files.writable_folder(target)
    planned = {run.id: run for plan in plans for run in plan.runs()}
    missing = tuple(run for key, run in planned.items() if key not in comparable)
    published = replace(_only(collection, comparable), missing=missing)
    rendered = [table.as_table().markdown() for rule in RULES for table in tables(published.finished(), rule)]
    made = origins(collection.statuses[key] for key in sorted(comparable))
    with files.replaced_together(target) as staged:
        write_published(staged, (_published(folder, run) for run in published.runs))
        for plan in plans:
            plan.save(staged)
        files.write(staged / TABLES, "\n".join([*rendered, *made]))
    unknown = sum(not collection.statuses[key].has_provenance for key in comparable)
    left = len(collection.runs) - len(ended), len(ended - comparable)
    return Publication(target / FILE, len(comparable), *left, unknown, collection.notes)


def comparable_runs(plans: Sequence[Plan], runs: Iterable[Run], ended: set[str]) -> set[str]:
    """Of every plan the draws that have ended in as many trials as any draw has, and all ended runs of no plan.

    A soup or an ensemble counts where all its members do.
    """
    planned: set[str] = set()
    complete: set[str] = set()
    for plan in plans:
        cells: dict[tuple[int, int], set[str]] = {}
        for run in plan.runs():
            cells.setdefault((run.draw, run.trial), set()).add(run.id)
        planned = planned.union(*cells.values())
        for trials in range(plan.trials, 0, -1):
            by_draw: list[set[str]] = [
                set().union(*(cells[draw, trial] for trial in range(trials))) for draw in range(plan.draws)
            ]
            if ended_draws := [runs_of_draw for runs_of_draw in by_draw if runs_of_draw <= ended]:
                complete = complete.union(*ended_draws)
                break
    unplanned = [run for run in runs if run.id in ended and run.id not in planned]
    complete |= {run.id for run in unplanned if not run.combination}
    return complete | {run.id for run in unplanned if run.combination and complete.issuperset(run.members)}


def origins(statuses: Iterable[Status]) -> list[str]:
    """On which devices, with how many threads, with which software and when the runs were made, a line each."""
    made: dict[tuple[str, str, str, str], int] = {}
    for status in statuses:
        threads = "" if status.threads is None else counted(status.threads, "thread")
        key = (status.device, threads, status.software, status.date)
        made[key] = made.get(key, 0) + 1
    return [
        f"{counted(count, 'run')}: {', '.join(part for part in key if part)}\n"
        for key, count in made.items()
        if any(key)
    ]


def unpack(published: Path, folder: Path) -> tuple[int, int]:
    """Puts published records into a sweep's folder as if its runs had ended there; (runs written, runs it had).

    A run that ended there, or is being trained, stays as it is.
    """
    if not is_published(published):
        raise UserError(f"{published} holds no published records ({FILE}): give a folder that publish has written")
    if is_published(folder):
        raise UserError(f"{folder} holds published records: unpack into a sweep's own folder")
    files.writable_folder(folder)
    written = had = 0
    for one in read_published(published):
        run_folder = RunFolder(folder, one.run)
        run_folder.create()
        try:
            with RunLock(run_folder.path) as lock:
                new = run_folder.status() is None
                if new:
                    _write(one, run_folder)
                lock.release_all()
        except RunLocked:
            new = False
        written += new
        had += not new
    for plan in saved_plans(published):
        plan.save(folder)
    return written, had


def _write(one: PublishedRun, run_folder: RunFolder) -> None:
    """Replaces the records that the run has so far; they come last and all at once, so that no half of a run counts."""
    run_folder.checkpoint_file.unlink(missing_ok=True)
    run_folder.penalties_file.unlink(missing_ok=True)
    if one.penalties:
        run_folder.append_penalties(one.penalties)
    if one.audit is not None:
        run_folder.save_audit(dict(one.audit))
    run_folder.replace_records([*one.records(), one.status])


def _only(collection: Collection, keys: set[str]) -> Collection:
    """These runs of a collection, in the order in which they are published."""
    runs = in_published_order(run for run in collection.runs if run.id in keys)
    curves: dict[str, list[Curve]] = {}
    for curve in collection.curves:
        curves.setdefault(curve.run.id, []).append(curve)
    return replace(
        collection,
        curves=tuple(curve for run in runs for curve in curves.get(run.id, [])),
        runs=tuple(runs),
        statuses={run.id: collection.statuses[run.id] for run in runs},
    )


def _published(folder: Path, run: Run) -> PublishedRun:
    run_folder = RunFolder(folder, run)
    more = run_folder.read_penalties(), run_folder.read_audit()
    found = parse_records(files.read(run_folder.records_file), run, COLUMNS)
    if found is not None and found.columns is not None and found.status is not None:
        return PublishedRun.of_columns(run, found.status, found.columns, found.averaged, *more)
    records, status = run_folder.read()
    assert status is not None
    return PublishedRun.of(run, status, records, *more)
