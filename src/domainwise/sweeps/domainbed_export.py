"""Writes finished runs as the results of DomainBed's own sweeps."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve
from domainwise.sweeps.collection import collect, distinct, experiment
from domainwise.sweeps.domainbed import DONE, NAMES, NOT_NUMBERED, RESULTS
from domainwise.sweeps.published import is_published


def export_domainbed(folder: Path, target: Path) -> int:
    """Writes our runs as DomainBed would have, for its own collection; returns how many.

    We do not evaluate `in` of training environments, so `env{i}_in_acc` is there for test environments only: all that
    the collection asks for. Training losses, and hyper-parameters that have no value, are left out as well; `epoch` is
    0, because records do not know how many images there were, and `mem_gb` too. `step_time` includes evaluations.

    Averaged weights are an algorithm of their own, "ERM + SMA", in folders of their own. Left out are runs that the
    format cannot describe, for it knows only training on everything but the test environments: those of the
    single-source setting or with validation domains, those that use only some of the domains, and those never
    evaluated.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} exists and is not an empty folder: choose another to export to")
    if is_published(folder):
        raise UserError(f"{folder} holds published records: unpack them into a folder first, then export that")
    collection = collect(folder)
    order = _order(curve.run for curve in collection.curves)
    curves = [curve for curve in distinct(collection.curves) if _expressible(curve, order[curve.run.dataset])]
    if not curves:
        raise UserError(f"{folder} holds no run that DomainBed's format can describe: nothing to export")
    if unnumbered := {curve.run.dataset for curve in curves} & {*NOT_NUMBERED}:
        raise UserError(
            f"{folder} holds runs on {', '.join(sorted(unnumbered))}, whose domains DomainBed numbers by the order of "
            "the images: move them out, then export the rest"
        )
    _check_distinct(curves)
    for curve in curves:
        run = curve.run
        path = files.writable_folder(target / (f"{run.id}-{curve.average}" if curve.average else run.id))
        records, status = RunFolder(folder, run).read()
        rows = _rows(curve, order[run.dataset], {record.step: record.seconds for record in records}, str(path))
        lines = "".join(json.dumps(row, sort_keys=True, allow_nan=False) + "\n" for row in rows)
        files.write(path / RESULTS, lines)
        if status is not None and status.status == "done":
            files.write(path / DONE, "done")
    return len(curves)


def _order(runs: Iterable[Run]) -> dict[str, tuple[str, ...]]:
    """{dataset: its domains in the order of their numbers}; of a dataset we do not know, those of its runs by name."""
    used: dict[str, set[str]] = {}
    for run in runs:
        used.setdefault(run.dataset, set()).update(run.domains)
    return {
        name: DATASETS[name].domains if name in DATASETS else tuple(sorted(domains)) for name, domains in used.items()
    }


def _expressible(curve: Curve, order: Sequence[str]) -> bool:
    run = curve.run
    needed = {(domain, "out") for domain in order} | {(domain, "in") for domain in run.test_domains}
    complete = {*run.train_domains, *run.test_domains} == set(order) and needed <= set(curve.accuracy)
    return complete and run.setting == "multi"


def _check_distinct(curves: Iterable[Curve]) -> None:
    """DomainBed would mix searches that differ in network, steps, precision or seed only.

    Algorithms may differ in their steps: it tells them apart by name.
    """
    first: dict[object, Run] = {}
    for curve in curves:
        run = curve.run
        table = first.setdefault(run.dataset, run)
        job = first.setdefault((run.dataset, curve.method, frozenset(run.test_domains), run.draw, run.trial), run)
        search = first.setdefault((run.dataset, curve.method), run)
        alike = replace(experiment(table), steps=search.steps) == replace(experiment(run), steps=run.steps)
        if job is not run or not alike:
            other = job if job is not run else search if search is not run else table
            raise UserError(
                f"DomainBed's format cannot distinguish run {run.id} from {other.id} (it lacks network, steps, "
                "precision and seed): export each search from a folder of its own"
            )


def _rows(curve: Curve, order: Sequence[str], seconds: Mapping[int, float], output_dir: str) -> list[dict[str, Any]]:
    run = curve.run
    args = {
        "algorithm": str(curve.method),
        "checkpoint_freq": run.evaluate_every,
        "data_dir": "",
        "dataset": NAMES.get(run.dataset, run.dataset),
        "holdout_fraction": run.held_out,
        "hparams_seed": run.draw,
        "output_dir": output_dir,
        "seed": run.seed,
        "steps": run.steps,
        "task": "domain_generalization",
        "test_envs": sorted(order.index(domain) for domain in run.test_domains),
        "trial_seed": run.trial,
        "uda_holdout_fraction": 0,
    }
    hparams = {name: value for name, value in run.hparams.items() if value is not None}
    rows, before, spent = [], -1, 0.0
    for i, step in enumerate(curve.steps):
        row = {f"env{order.index(domain)}_{split}_acc": float(v[i]) for (domain, split), v in curve.accuracy.items()}
        row |= {"step": step, "epoch": 0.0, "mem_gb": 0.0, "step_time": (seconds[step] - spent) / (step - before)}
        rows.append({**row, "hparams": hparams, "args": args})
        before, spent = step, seconds[step]
    return rows
