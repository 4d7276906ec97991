"""domainwise: train and judge models that must work on domains they have never seen."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.algorithms import ALGORITHMS
    from domainwise.algorithms.base import Algorithm, Problem, algorithm
    from domainwise.data.catalogue import DATASETS, dataset
    from domainwise.data.environments import Environments
    from domainwise.engine.train import Interrupted, TrainingResult, train
    from domainwise.models.estimator import DomainGeneralizer
    from domainwise.models.fit import fit
    from domainwise.models.folder import load
    from domainwise.models.model import Model
    from domainwise.models.tune import tune
    from domainwise.nets import NETWORKS
    from domainwise.nets.network import Network, network
    from domainwise.protocol.records import Record
    from domainwise.protocol.runs import Run
    from domainwise.sweep.plan import plan_run as plan

__version__ = "0.1.0"

_HOMES = {
    "domainwise.algorithms": ("ALGORITHMS",),
    "domainwise.algorithms.base": ("Algorithm", "Problem", "algorithm"),
    "domainwise.data.catalogue": ("DATASETS", "dataset"),
    "domainwise.data.environments": ("Environments",),
    "domainwise.engine.train": ("Interrupted", "TrainingResult", "train"),
    "domainwise.models.estimator": ("DomainGeneralizer",),
    "domainwise.models.fit": ("fit",),
    "domainwise.models.folder": ("load",),
    "domainwise.models.model": ("Model",),
    "domainwise.models.tune": ("tune",),
    "domainwise.nets": ("NETWORKS",),
    "domainwise.nets.network": ("Network", "network"),
    "domainwise.protocol.records": ("Record",),
    "domainwise.protocol.runs": ("Run",),
    "domainwise.sweep.plan": ("plan_run",),
}
"""Where each name lives. They are imported when first asked for: importing torch alone takes seconds."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}
_RENAMED = {"plan": "plan_run", "Outcome": "TrainingResult"}

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
    "Problem",
    "Record",
    "Run",
    "TrainingResult",
    "UserError",
    "algorithm",
    "dataset",
    "fit",
    "load",
    "network",
    "plan",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    inner = _RENAMED.get(name, name)
    if inner not in _HOME:
        raise AttributeError(f"module 'domainwise' has no attribute {name!r}")
    return getattr(import_module(_HOME[inner]), inner)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
