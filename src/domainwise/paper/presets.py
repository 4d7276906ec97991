"""How the paper ran each of its tables: steps, network, search spaces, loss cap, per dataset and algorithm.

Numbers from appendix A.2 and B; where the paper gives none, DomainBed's (steps of the dataset, its own space).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from domainwise.core.errors import unknown
from domainwise.data.catalogue import DATASETS
from domainwise.data.find import find_dataset
from domainwise.nets import pretrained_weights
from domainwise.paper.tables import OVER_DATASETS, PaperTable, find_table
from domainwise.protocol.spaces import Value
from domainwise.sweep.plan import Plan

LONG = {"ColoredMNIST": 10_001, "PACS": 10_001, "NICO": 8_001, "TerraIncognita": 5_001}
"""Steps of AT, UAT and DAT with several training domains ("to ensure convergence"), evaluation 0 included."""
SHORT = 5_001
"""Steps of WRM, ADA, Mixed-Same, and of every single-source run."""
DIGITS_STEPS = 10_001
NETWORKS = {"PACS": "resnet18", "TerraIncognita": "resnet18", "NICO": "resnet18-scratch", "MixedSame": "resnet18"}
"""Where the paper's network is not the dataset's own; `-scratch` is without pre-training."""
LOSS_CAPS = {"NICO": 2.0}
"""Where the paper caps the ascent's sample losses."""
ADVERSARIAL = ("AT", "UAT", "DAT", "EnsembleUAT")


@dataclass(frozen=True)
class Cell:
    """What one published row needs: a search of its own."""

    dataset: str
    algorithm: str
    setting: str
    variant: str


def cells(table: PaperTable) -> list[Cell]:
    """The searches behind a table, each once; averages over datasets follow from them."""
    found = (Cell(p.dataset, p.algorithm, p.setting, p.variant) for p in table.published)
    return [cell for cell in dict.fromkeys(found) if cell.dataset != OVER_DATASETS]


def steps(table: PaperTable, cell: Cell) -> int | None:
    """None is the dataset's own."""
    if cell.dataset == "Digits":
        return DIGITS_STEPS
    if cell.setting == "single" or cell.algorithm in ("WRM", "ADA") or cell.dataset == "MixedSame":
        return SHORT
    if table.label == "db":
        return None
    return LONG.get(cell.dataset) if cell.algorithm in ADVERSARIAL else None


def fewer_steps(table: PaperTable, cell: Cell, asked: int | None) -> int | None:
    """What was asked for, but never more than the paper's."""
    whole = steps(table, cell)
    return whole if asked is None else min(asked, whole or DATASETS[cell.dataset].steps)


def network(table: PaperTable, cell: Cell) -> str | None:
    """The DomainBed table uses DomainBed's networks; the others the paper's."""
    return None if table.label == "db" else NETWORKS.get(cell.dataset)


@dataclass(frozen=True)
class Smaller:
    """What a reproduction does with less or otherwise than the paper; None is as the paper does."""

    draws: int = 20
    trials: int = 3
    steps: int | None = None
    network: str | None = None
    precision: str = "fp32"
    weights: str = ""
    """For the networks that start from some."""
    image_size: int | None = None
    """For the datasets that can be loaded at another size."""


FULL = Smaller()


def plan(table: PaperTable, cell: Cell, smaller: Smaller, seed: int = 0) -> Plan:
    """The search of one cell."""
    fixed: dict[str, Value] = {}
    if cell.algorithm in ADVERSARIAL and cell.dataset in LOSS_CAPS:
        fixed["loss_cap"] = LOSS_CAPS[cell.dataset]
    ranges: dict[str, tuple[float, float]] = {}
    if cell.variant:
        norm, ranges = parse_variant(cell.variant)
        fixed["norm"] = norm
    data = find_dataset(cell.dataset)
    chosen = smaller.network or network(table, cell)
    searched = cell.dataset != "Digits"
    return Plan(
        cell.dataset,
        (cell.algorithm,),
        draws=smaller.draws if searched else 1,
        trials=smaller.trials,
        setting=cell.setting,
        space="paper",
        steps=fewer_steps(table, cell, smaller.steps),
        network=chosen,
        weights=smaller.weights if pretrained_weights(chosen or data.network) else "",
        precision=smaller.precision,
        image_size=smaller.image_size if data.resizable else None,
        seed=seed,
        hparams=fixed,
        ranges=ranges,
        variant=cell.variant,
    )


def parse_variant(variant: str) -> tuple[str, dict[str, tuple[float, float]]]:
    """ "l2, eps 1e-2..1e-1, alpha 1e-4..1e-3" -> ("l2", {"eps": (-2, -1), "alpha": (-4, -3)}): exponents of ten."""
    norm, *parts = variant.split(", ")
    ranges = {}
    for part in parts:
        name, _, span = part.partition(" ")
        low, high = span.split("..")
        ranges[name] = (float(low.removeprefix("1e")), float(high.removeprefix("1e")))
    return norm, ranges


def reproduction(
    name: str,
    smaller: Smaller = FULL,
    *,
    dataset: str | None = None,
    algorithms: Sequence[str] = (),
    seed: int = 0,
) -> list[Plan]:
    """The plans behind a table of the paper, or behind the part of it asked for."""
    table = find_table(name)
    wanted = cells(table)
    for asked, known, kind in (
        ([dataset] if dataset else [], {c.dataset for c in wanted}, "dataset"),
        (list(algorithms), {c.algorithm for c in wanted}, "algorithm"),
    ):
        for one in asked:
            if one not in known:
                raise unknown(f"{kind} of table {table.label}", one, known)
    return [
        plan(table, c, smaller, seed)
        for c in wanted
        if (not dataset or c.dataset == dataset) and (not algorithms or c.algorithm in algorithms)
    ]
