"""domainwise: train and judge models that must work on domains they have never seen."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from domainwise.errors import UserError

if TYPE_CHECKING:
    from domainwise.algorithms import ALGORITHMS, Algorithm, Problem, algorithm
    from domainwise.data import DATASETS, Environments, dataset
    from domainwise.engine.train import Interrupted, Outcome, train
    from domainwise.nets.network import NETWORKS, Network, network
    from domainwise.records import Record
    from domainwise.runs import Run
    from domainwise.shipping.estimator import DomainGeneralizer
    from domainwise.shipping.fit import fit
    from domainwise.shipping.folder import load
    from domainwise.shipping.model import Model
    from domainwise.shipping.tune import tune

__version__ = "0.1.0"

_HOMES = {
    "domainwise.algorithms": ("ALGORITHMS", "Algorithm", "Problem", "algorithm"),
    "domainwise.data": ("DATASETS", "Environments", "dataset"),
    "domainwise.engine.train": ("Interrupted", "Outcome", "train"),
    "domainwise.nets": ("NETWORKS", "Network", "network"),
    "domainwise.records": ("Record",),
    "domainwise.runs": ("Run",),
    "domainwise.shipping.estimator": ("DomainGeneralizer",),
    "domainwise.shipping.fit": ("fit",),
    "domainwise.shipping.folder": ("load",),
    "domainwise.shipping.model": ("Model",),
    "domainwise.shipping.tune": ("tune",),
}
"""Where each name lives. They are imported when first asked for: importing torch alone takes seconds."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "NETWORKS",
    "Algorithm",
    "DomainGeneralizer",
    "Environments",
    "Interrupted",
    "Model",
    "Network",
    "Outcome",
    "Problem",
    "Record",
    "Run",
    "UserError",
    "algorithm",
    "dataset",
    "fit",
    "load",
    "network",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'domainwise' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
