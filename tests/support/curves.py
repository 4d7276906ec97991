"""Records and curves made by hand, for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from domainwise.protocol.records import Record, RunFolder, Status
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Choice, Curve
from domainwise.sweep.plan import plan_run

STEPS = (0, 10, 20)
COLOURS = ("+90%", "+80%", "-90%")


def a_run(*test: str, dataset: str = "BackgroundDigits", algorithm: str = "ERM", **facts: Any) -> Run:
    return plan_run(dataset, algorithm, test or ("scene1",), steps=21, evaluate_every=10, **facts)


def rows(run: Run, given: Mapping[str, Sequence[float]] = {}, steps: Sequence[int] = STEPS) -> list[Record]:
    """As a training leaves them, from {"scene1 in": one accuracy per step}; what is not given is 0.5."""
    parts = [(domain, "out") for domain in run.train_domains]
    parts += [(domain, split) for domain in (*run.validation_domains, *run.test_domains) for split in ("in", "out")]
    return [
        Record(run.id, step, *part, given.get(" ".join(part), [0.5] * len(steps))[i], 1.0, 0.5 * i)
        for i, step in enumerate(steps)
        for part in parts
    ]


def curve(run: Run, given: Mapping[str, Sequence[float]] = {}, without: str = "") -> Curve:
    return Curve.of(run, [row for row in rows(run, given) if f"{row.domain} {row.split}" != without])


def keep(
    folder: Path,
    run: Run,
    given: Mapping[str, Sequence[float]] = {},
    ended: str = "done",
    steps: Sequence[int] = STEPS,
) -> RunFolder:
    """A run's folder with records and, unless it is still running, a status."""
    kept = RunFolder(folder, run)
    kept.create()
    kept.append(rows(run, given, steps))
    if ended:
        kept.append([Status(run.id, 20, ended, "")])  # type: ignore[arg-type]
    return kept


def facts(choice: Choice | None) -> tuple[int, int, float] | None:
    return choice and (choice.run.draw, choice.step, choice.accuracy)
