"""Sweeps that were never run: their folders, made by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from domainwise.protocol.records import Record, RunFolder, Status
from domainwise.protocol.runs import Run
from domainwise.sweep.plan import plan_run

COLOURS = ("+90%", "+80%", "-90%")


def keep(
    folder: Path, run: Run, accuracy: float, *, train_out: float = 0.5, unseen_out: float = 0.5, seconds: float = 60.0
) -> RunFolder:
    """A run done in two evaluations: `in` splits at this accuracy, `out` splits first at 0.6, then at these."""
    kept = RunFolder(folder, run)
    kept.create()
    values = {(domain, "out"): train_out for domain in run.train_domains}
    for domain in (*run.validation_domains, *run.test_domains):
        values |= {(domain, "in"): accuracy, (domain, "out"): unseen_out}
    for step in (0, run.steps - 1):
        now = {part: value if step or part[1] == "in" else 0.6 for part, value in values.items()}
        kept.append([Record(run.id, step, *part, value, 1.0, seconds * (step > 0)) for part, value in now.items()])
    kept.append([Status(run.id, run.steps - 1, "done", "")])
    return kept


def colours(algorithm: str, unseen: str | Sequence[str], **facts: Any) -> Run:
    return plan_run("ColoredMNIST", algorithm, unseen, **{"steps": 21, "evaluate_every": 20, **facts})


def sweep(folder: Path, backwards: bool = False, seconds: float = 60.0, **facts: Any) -> Path:
    """ERM and DAT on ColoredMNIST, two draws, two trials: ERM has 50 % and 52 %, DAT ten more, on every domain."""
    runs = [
        (colours(algorithm, unseen, draw=draw, trial=trial, **facts), 0.5 + 0.1 * (algorithm == "DAT") + 0.02 * trial)
        for algorithm in ("ERM", "DAT")
        for unseen in COLOURS
        for draw in range(2)
        for trial in range(2)
    ]
    for run, accuracy in runs[::-1] if backwards else runs:
        keep(folder, run, accuracy, seconds=seconds)
    return folder
