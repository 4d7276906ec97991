"""Studies known by name: every algorithm on those datasets of a benchmark that are on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError, unknown
from domainwise.data.catalogue import DATASETS
from domainwise.nets import pretrained_weights
from domainwise.nets.weights import locate
from domainwise.protocol.options import TrainingOptions
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan import Plan, plan_sweep, planned_runs

PRESETS = {
    "domainbed": (
        *("ColoredMNIST", "RotatedMNIST", "VLCS", "PACS", "OfficeHome", "TerraIncognita", "DomainNet", "SVIRO"),
        *("Camelyon17", "FMoW"),
        *("SpawriousO2O_easy", "SpawriousO2O_medium", "SpawriousO2O_hard"),
        *("SpawriousM2M_easy", "SpawriousM2M_medium", "SpawriousM2M_hard"),
    ),
}
"""The datasets of each; DomainBed's come in the order of its tables, then those of its code."""


@dataclass(frozen=True)
class Study:
    """The plans of a preset, one per dataset, and why datasets, or algorithms on some of them, are left out."""

    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]


def plan_preset(
    name: str,
    options: TrainingOptions,
    algorithms: Sequence[str] = (),
    *,
    data_root: Path | None = None,
    **search: Any,
) -> Study:
    """A plan for every dataset of the preset whose data and weights are here, by default with all algorithms.

    Algorithms that cannot be trained so are left out. `search` are further arguments of `plan_sweep`.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    plans, left_out = [], []
    unsuited: dict[tuple[str, str], list[str]] = {}
    for dataset in PRESETS[name]:
        try:
            plan = _plan(dataset, options, algorithms or tuple(ALGORITHMS), data_root, search)
        except _NotHere as reason:
            left_out.append(f"{dataset}: {reason}")
            continue
        reasons = plan.unsuited
        for found in reasons.items():
            unsuited.setdefault(found, []).append(dataset)
        if suited := tuple(algorithm for algorithm in plan.algorithms if algorithm not in reasons):
            plans.append(replace(plan, algorithms=suited))
    left_out += [f"{algorithm} on {', '.join(where)}: {why}" for (algorithm, why), where in unsuited.items()]
    if not plans:
        raise UserError(f"none of the datasets of the preset {name} can be trained here; the first, {left_out[0]}")
    return Study(tuple(plans), tuple(left_out))


class _NotHere(Exception):
    """Data or weights that are not on this machine; the message says how to get them."""


def _plan(
    dataset: str, options: TrainingOptions, algorithms: Sequence[str], root: Path | None, search: dict[str, Any]
) -> Plan:
    data = DATASETS[dataset]
    if missing := data.missing(root):
        raise _NotHere(missing)
    pretrained = pretrained_weights(options.network or data.network)
    suitable = replace(
        options,
        image_size=options.image_size if data.resizable else None,
        weights=options.weights if pretrained else "",
    )
    plan = plan_sweep(dataset, algorithms, suitable, **search)
    if plan.options.weights:
        try:
            locate(plan.options.weights, root)
        except UserError as error:
            raise _NotHere(str(error)) from None
    return plan


def draw_by_draw(plans: Sequence[Plan]) -> list[Run]:
    """The runs of all plans, each once: the first draw on every dataset in every trial, then the second.

    A study that is cut short has compared all algorithms, on all datasets, on the draws it finished.
    """
    return sorted(planned_runs(plans), key=lambda run: run.draw)
