"""What a search was made with, and where ours differ from the paper's: a number beside the paper's says so."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from domainwise.data.sources.folder import find_dataset
from domainwise.nets.weights import planned
from domainwise.paper.presets import Cell, network, steps
from domainwise.paper.tables import PaperTable
from domainwise.protocol.runs import WeightsReference
from domainwise.sweep.plan import Plan

DRAWS, TRIALS = 20, 3
CLEAN = "training domains are judged on clean images, not on augmented ones"


@dataclass(frozen=True)
class Conditions:
    """How much was searched, and what was trained from what on what; without a network, the latter is not known."""

    draws: int
    trials: int
    steps: int
    network: str = ""
    weights: str = ""
    """As a Run names them; "" is a random start."""
    precision: str = "fp32"
    augmentation: str = "none"
    image_size: int = 0


def of_paper(table: PaperTable, cell: Cell) -> Conditions:
    """The paper's own: its presets, in full."""
    data = find_dataset(cell.dataset)
    chosen = network(table, cell) or data.network
    return Conditions(
        1 if cell.dataset == "Digits" else DRAWS,
        TRIALS,
        steps(table, cell) or data.steps,
        chosen,
        planned(chosen),
        augmentation=data.augmentation,
        image_size=data.image_size,
    )


def of_plan(plan: Plan) -> Conditions:
    """Those of a search that is planned."""
    data = find_dataset(plan.dataset)
    return Conditions(
        plan.draws,
        plan.trials,
        plan.steps or data.steps,
        plan.network or data.network,
        plan.weights,
        plan.precision,
        plan.augmentation or data.augmentation,
        data.sized(plan.image_size),
    )


def differences(table: PaperTable, ours: Iterable[tuple[Cell, Conditions]]) -> list[str]:
    """Where searches for cells of a table differ from the paper's, in words; which datasets, where it is not all."""
    told: dict[tuple[int, str], list[str]] = {}
    everywhere = set()
    for cell, own in ours:
        everywhere.add(cell.dataset)
        for kind, words in enumerate(_differences(own, of_paper(table, cell))):
            if words:
                told.setdefault((kind, words), []).append(cell.dataset)
    return [
        words if set(where) == everywhere else f"{words} ({', '.join(dict.fromkeys(where))})"
        for (_, words), where in sorted(told.items(), key=lambda item: item[0][0])
    ]


def planned_differences(table: PaperTable, plans: Iterable[Plan]) -> list[str]:
    """The same of searches that are planned."""
    return differences(table, ((Cell(p.dataset, p.algorithms[0], p.setting, p.variant), of_plan(p)) for p in plans))


def _differences(own: Conditions, paper: Conditions) -> Iterator[str]:
    """One phrase for each kind of difference, empty where there is none."""
    for number, whole, what in (
        (own.draws, paper.draws, "draws"),
        (own.trials, paper.trials, "trials"),
        (own.steps, paper.steps, "steps"),
    ):
        short, more = f"{number} of {whole} {what}", f"{number} {what} for {whole}"
        yield short if number < whole else more if number > whole else ""
    if not own.network:
        return
    for mine, theirs in (
        (own.network, paper.network),
        (_start(own.weights), _start(paper.weights)),
        (own.precision, paper.precision),
        (f"augmentation {own.augmentation}", f"augmentation {paper.augmentation}"),
        (f"{own.image_size} pixels", f"{paper.image_size} pixels"),
    ):
        yield f"{mine} for {theirs}" if mine != theirs else ""
    yield CLEAN if paper.augmentation != "none" else ""


def _start(weights: str) -> str:
    """What a network starts from, by its file's name; the same name stands for the same contents."""
    file, fingerprint = WeightsReference.parse(weights)
    return f"weights {Path(file).name} ({fingerprint[:8]})" if weights else "a random start"
