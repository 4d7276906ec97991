"""How the paper ran each of its tables: steps, network, search spaces, loss cap, per dataset and algorithm.

Numbers from appendix A.2 and B; where the paper gives none, DomainBed's (the dataset's steps, the algorithm's space).
"""

from collections.abc import Sequence
from typing import Unpack

from domainwise.core.errors import unknown
from domainwise.data.catalogue import DATASETS
from domainwise.data.find import find_dataset
from domainwise.nets import pretrained_weights
from domainwise.paper.tables import OVER_DATASETS, VARIANTS, PaperSearch, PaperTable, find_table
from domainwise.protocol.options import DEFAULTS, TrainingKeywords, TrainingOptions
from domainwise.protocol.spaces import Value
from domainwise.sweeps.plan import Plan, plan_sweep

DRAWS, TRIALS = 20, 3
LONG = {"ColoredMNIST": 10_001, "PACS": 10_001, "NICO": 8_001, "TerraIncognita": 5_001}
"""Steps of AT, UAT and DAT with several training domains ("to ensure convergence"), evaluation 0 included."""
SHORT = 5_001
"""Steps of WRM, ADA, Mixed-Same, and of every single-source run."""
DIGITS_STEPS = 10_001
NETWORKS = {"PACS": "resnet18", "TerraIncognita": "resnet18", "NICO": "resnet18-scratch", "MixedSame": "resnet18"}
"""The paper's networks where they are not the dataset's default; `-scratch` is without pre-training."""
LOSS_CAPS = {"NICO": 2.0}
"""Caps of the ascent's sample losses."""
ADVERSARIAL = ("AT", "UAT", "DAT", "EnsembleUAT")


def cells(table: PaperTable) -> list[PaperSearch]:
    """The searches behind a table, each once; averages over datasets follow from them."""
    rows = dict.fromkeys(published.search for published in table.published)
    return [search for search in rows if search.dataset != OVER_DATASETS]


def steps(table: PaperTable, cell: PaperSearch) -> int | None:
    """None is the dataset's default."""
    if cell.dataset == "Digits":
        return DIGITS_STEPS
    if cell.setting == "single" or cell.algorithm in ("WRM", "ADA") or cell.dataset == "MixedSame":
        return SHORT
    if table.label == "db":
        return None
    return LONG.get(cell.dataset) if cell.algorithm in ADVERSARIAL else None


def fewer_steps(table: PaperTable, cell: PaperSearch, wanted: int | None) -> int | None:
    """The steps that a user wants, but never more than the paper's."""
    full = steps(table, cell)
    return full if wanted is None else min(wanted, full or DATASETS[cell.dataset].steps)


def network(table: PaperTable, cell: PaperSearch) -> str | None:
    """The DomainBed table uses DomainBed's networks; the others the paper's."""
    return None if table.label == "db" else NETWORKS.get(cell.dataset)


def plan(table: PaperTable, cell: PaperSearch, options: TrainingOptions = DEFAULTS, *, draws: int, trials: int) -> Plan:
    """The search of one cell. What the options name replaces the paper's choice, where the cell allows it: weights for
    networks that start from some, another image size for datasets that can be loaded so.
    """
    fixed: dict[str, Value] = {}
    if cell.algorithm in ADVERSARIAL and cell.dataset in LOSS_CAPS:
        fixed["loss_cap"] = LOSS_CAPS[cell.dataset]
    ranges: dict[str, tuple[float, float]] = {}
    if cell.variant:
        fixed["norm"], ranges = VARIANTS[cell.variant]
    data = find_dataset(cell.dataset)
    chosen = options.network or network(table, cell)
    return plan_sweep(
        cell.dataset,
        (cell.algorithm,),
        options,
        draws=1 if cell.dataset == "Digits" else draws,
        trials=trials,
        setting=cell.setting,
        space="paper",
        ranges=ranges,
        variant=cell.variant,
        steps=fewer_steps(table, cell, options.steps),
        network=chosen,
        weights=options.weights if pretrained_weights(chosen or data.network) else "",
        image_size=options.image_size if data.resizable else None,
        hparams=fixed,
    )


def reproduction(
    name: str,
    options: TrainingOptions = DEFAULTS,
    *,
    dataset: str | None = None,
    algorithms: Sequence[str] = (),
    draws: int = DRAWS,
    trials: int = TRIALS,
    **changes: Unpack[TrainingKeywords],
) -> list[Plan]:
    """The plans behind a table of the paper, or behind a part of it; options that are not given are the paper's."""
    options = options.changed(**changes)
    table = find_table(name)
    every_cell = cells(table)
    for wanted, known, kind in (
        ([dataset] if dataset else [], {c.dataset for c in every_cell}, "dataset"),
        (list(algorithms), {c.algorithm for c in every_cell}, "algorithm"),
    ):
        for one in wanted:
            if one not in known:
                raise unknown(f"{kind} of table {table.label}", one, known)
    return [
        plan(table, c, options, draws=draws, trials=trials)
        for c in every_cell
        if (not dataset or c.dataset == dataset) and (not algorithms or c.algorithm in algorithms)
    ]
