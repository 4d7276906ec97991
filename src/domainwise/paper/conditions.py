"""The conditions of a search, and where ours differ from the paper's: tables beside the paper's say so."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from domainwise.data.find import find_dataset
from domainwise.nets.weights import planned
from domainwise.paper.presets import DRAWS, TRIALS, network, steps
from domainwise.paper.tables import PaperSearch, PaperTable
from domainwise.protocol.runs import WeightsReference
from domainwise.sweeps.plan import Plan

CLEAN = "training domains are judged on clean images, not on augmented ones"


@dataclass(frozen=True)
class Conditions:
    """The size of a search and how its runs were trained; without a network, the latter is not known."""

    draws: int
    trials: int
    steps: int
    network: str = ""
    weights: str = ""
    """As a Run names them; "" is a random initialisation."""
    precision: str = "fp32"
    augmentation: str = "none"
    image_size: int = 0


def of_paper(table: PaperTable, cell: PaperSearch) -> Conditions:
    """The paper's: its presets, in full."""
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
    data, options = find_dataset(plan.dataset), plan.options
    return Conditions(
        plan.draws,
        plan.trials,
        options.steps or data.steps,
        options.network or data.network,
        options.weights,
        options.precision,
        options.augmentation or data.augmentation,
        data.check_image_size(options.image_size),
    )


def differences(table: PaperTable, ours: Iterable[tuple[PaperSearch, Conditions]]) -> list[str]:
    """Phrases for where searches for cells of a table differ from the paper's; with datasets, where it is not all."""
    phrases: dict[tuple[int, str], list[str]] = {}
    every_dataset = set()
    for cell, conditions in ours:
        every_dataset.add(cell.dataset)
        for kind, phrase in enumerate(_differences(conditions, of_paper(table, cell))):
            if phrase:
                phrases.setdefault((kind, phrase), []).append(cell.dataset)
    return [
        phrase if set(datasets) == every_dataset else f"{phrase} ({', '.join(dict.fromkeys(datasets))})"
        for (_, phrase), datasets in sorted(phrases.items(), key=lambda item: item[0][0])
    ]


def planned_differences(table: PaperTable, plans: Iterable[Plan]) -> list[str]:
    """The same for plans."""
    searches = ((PaperSearch(p.dataset, p.algorithms[0], p.setting, p.variant), of_plan(p)) for p in plans)
    return differences(table, searches)


def _differences(ours: Conditions, paper: Conditions) -> Iterator[str]:
    """One phrase for each kind of difference, empty where there is none."""
    for number, full, unit in (
        (ours.draws, paper.draws, "draws"),
        (ours.trials, paper.trials, "trials"),
        (ours.steps, paper.steps, "steps"),
    ):
        fewer, more = f"{number} of {full} {unit}", f"{number} {unit} for {full}"
        yield fewer if number < full else more if number > full else ""
    if not ours.network:
        return
    for our, their in (
        (ours.network, paper.network),
        (_start(ours.weights), _start(paper.weights)),
        (ours.precision, paper.precision),
        (f"augmentation {ours.augmentation}", f"augmentation {paper.augmentation}"),
        (f"{ours.image_size} pixels", f"{paper.image_size} pixels"),
    ):
        yield f"{our} for {their}" if our != their else ""
    yield CLEAN if paper.augmentation != "none" else ""


def _start(weights: str) -> str:
    """What a network starts from, by its file's name; the same name stands for the same contents."""
    file, fingerprint = WeightsReference.parse(weights)
    return f"weights {Path(file).name} ({fingerprint[:8]})" if weights else "a random start"
