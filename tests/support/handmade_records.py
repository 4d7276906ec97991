"""Runs that were never trained: their records, curves and folders, made by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Curve, Selection
from domainwise.sweeps.plan_run import plan_run

STEPS = (0, 10, 20)
COLOURS = ("+90%", "+80%", "-90%")


def a_run(*test: str, dataset: str = "BackgroundDigits", algorithm: str = "ERM", **facts: Any) -> Run:
    return plan_run(dataset, algorithm, test or ("scene1",), steps=21, evaluate_every=10, **facts)


def evaluated_splits(run: Run) -> list[tuple[str, str]]:
    """The (domain, split) that an evaluation of a run with held-out data judges."""
    unseen = (*run.validation_domains, *run.test_domains)
    return [(d, "out") for d in run.train_domains] + [(d, split) for d in unseen for split in ("in", "out")]


def rows(run: Run, given: Mapping[str, Sequence[float]] = {}, steps: Sequence[int] = STEPS) -> list[Record]:
    """As a training leaves them, from {"scene1 in": one accuracy per step}; what is not given is 0.5."""
    return [
        Record(run.id, step, *part, given.get(" ".join(part), [0.5] * len(steps))[i], 1.0, 0.5 * i)
        for i, step in enumerate(steps)
        for part in evaluated_splits(run)
    ]


def curve(run: Run, given: Mapping[str, Sequence[float]] = {}, without: str = "") -> Curve:
    return Curve.of(run, [row for row in rows(run, given) if f"{row.domain} {row.split}" != without])


def write_run(
    folder: Path,
    run: Run,
    given: Mapping[str, Sequence[float]] = {},
    ended: str = "done",
    steps: Sequence[int] = STEPS,
) -> RunFolder:
    """A run's folder with records and, unless it is still running, a status."""
    run_folder = RunFolder(folder, run)
    run_folder.create()
    run_folder.append(rows(run, given, steps))
    if ended:
        run_folder.append([Status(run.id, 20, ended, "")])  # type: ignore[arg-type]
    return run_folder


def facts(choice: Selection | None) -> tuple[int, int, float] | None:
    return choice and (choice.run.draw, choice.step, choice.accuracy)


def write_done_run(
    folder: Path, run: Run, accuracy: float, *, train_out: float = 0.5, unseen_out: float = 0.5, seconds: float = 60.0
) -> RunFolder:
    """A run with two evaluations: `in` splits at this accuracy, `out` splits first at 0.6, then at these."""
    run_folder = RunFolder(folder, run)
    run_folder.create()
    values = {(domain, "out"): train_out for domain in run.train_domains}
    for domain in (*run.validation_domains, *run.test_domains):
        values |= {(domain, "in"): accuracy, (domain, "out"): unseen_out}
    for step in (0, run.steps - 1):
        now = {part: value if step or part[1] == "in" else 0.6 for part, value in values.items()}
        run_folder.append(
            [Record(run.id, step, *part, value, 1.0, seconds * (step > 0)) for part, value in now.items()]
        )
    run_folder.append([Status(run.id, run.steps - 1, "done", "")])
    return run_folder


def colours(algorithm: str, unseen: str | Sequence[str], **options: Any) -> Run:
    return plan_run("ColoredMNIST", algorithm, unseen, **{"steps": 21, "evaluate_every": 20, **options})


def write_sweep(folder: Path, backwards: bool = False, seconds: float = 60.0, **options: Any) -> Path:
    """ERM and DAT on ColoredMNIST, two draws, two trials: ERM has 50 % and 52 %, DAT ten more, on every domain."""
    runs = [
        (colours(algorithm, unseen, draw=draw, trial=trial, **options), 0.5 + 0.1 * (algorithm == "DAT") + 0.02 * trial)
        for algorithm in ("ERM", "DAT")
        for unseen in COLOURS
        for draw in range(2)
        for trial in range(2)
    ]
    for run, accuracy in runs[::-1] if backwards else runs:
        write_done_run(folder, run, accuracy, seconds=seconds)
    return folder


def a_measured_run(folder: Path, algorithm: str, loss: float, trial: int = 0, unseen: str = "+90%") -> RunFolder:
    """With every metric: accuracy 0.5, and a loss that grows with the trial."""
    run = colours(algorithm, unseen, trial=trial)
    made = RunFolder(folder, run)
    made.create()
    parts = [(d, "out") for d in run.train_domains] + [(unseen, "in"), (unseen, "out")]
    made.append(
        [
            Record(run.id, 20, *part, 0.5, loss + trial / 100, 1.0, 0.7, None, 0.5, 0.25, 0.75, 0.125, 0.0, 0.25)
            for part in parts
        ]
    )
    made.append([Status(run.id, 20, "done", "")])
    return made
