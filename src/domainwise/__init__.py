"""domainwise: train and judge models that must work on domains they have never seen.

import domainwise as dw

result = dw.train("BackgroundDigits", "DAT", "scene1", steps=601)
model = dw.fit("photos", "DAT", out="model")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from domainwise.core import deprecation
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.algorithms import ALGORITHMS
    from domainwise.algorithms.base import Algorithm, Problem, algorithm
    from domainwise.algorithms.risk import ERM
    from domainwise.data.catalogue import DATASETS, dataset
    from domainwise.data.environments import Environments
    from domainwise.data.find import load_dataset
    from domainwise.engine.result import TrainingResult
    from domainwise.engine.train import Interrupted
    from domainwise.models.calibrate import calibrate
    from domainwise.models.combine import ensemble, soup
    from domainwise.models.compare import compare
    from domainwise.models.dfr import dfr
    from domainwise.models.estimator import DomainGeneralizer
    from domainwise.models.features import extract_features
    from domainwise.models.fit import fit
    from domainwise.models.folder import load_model
    from domainwise.models.interpolate import interpolate
    from domainwise.models.model import Model
    from domainwise.models.training import train
    from domainwise.models.tune import tune
    from domainwise.nets import NETWORKS
    from domainwise.nets.network import Network, network
    from domainwise.protocol.records import Record
    from domainwise.protocol.runs import Run
    from domainwise.protocol.spaces import ByScale, Choice, Fixed, LogInteger, LogUniform, Uniform, UniformInteger
    from domainwise.reports.page.write import report
    from domainwise.sweeps.launch import sweep
    from domainwise.sweeps.plan_run import plan_run as plan
    from domainwise.sweeps.tables import table

__version__ = "0.1.0"

_HOMES = {
    "algorithms": ("ALGORITHMS",),
    "algorithms.base": ("Algorithm", "Problem", "algorithm"),
    "algorithms.risk": ("ERM",),
    "data.catalogue": ("DATASETS", "dataset"),
    "data.environments": ("Environments",),
    "data.find": ("load_dataset",),
    "engine.result": ("TrainingResult",),
    "engine.train": ("Interrupted",),
    "models.calibrate": ("calibrate",),
    "models.combine": ("ensemble", "soup"),
    "models.compare": ("compare",),
    "models.dfr": ("dfr",),
    "models.estimator": ("DomainGeneralizer",),
    "models.features": ("extract_features",),
    "models.fit": ("fit",),
    "models.folder": ("load_model",),
    "models.interpolate": ("interpolate",),
    "models.model": ("Model",),
    "models.training": ("train",),
    "models.tune": ("tune",),
    "nets": ("NETWORKS",),
    "nets.network": ("Network", "network"),
    "protocol.records": ("Record",),
    "protocol.runs": ("Run",),
    "protocol.spaces": ("ByScale", "Choice", "Fixed", "LogInteger", "LogUniform", "Uniform", "UniformInteger"),
    "reports.page.write": ("report",),
    "sweeps.launch": ("sweep",),
    "sweeps.plan_run": ("plan_run",),
    "sweeps.tables": ("table",),
}
"""Where each name lives. It is imported when first asked for: importing torch alone takes seconds."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}
_RENAMED = {"load": "load_model", "Outcome": "TrainingResult"}
"""Names of the last release -> their names now."""

deprecation.install(
    {
        "domainwise.claims": "domainwise.core.locks",
        "domainwise.errors": "domainwise.core.errors",
        "domainwise.files": "domainwise.core.files",
        "domainwise.plugins": "domainwise.core.plugins",
        "domainwise.records": "domainwise.protocol.records",
        "domainwise.registry": "domainwise.core.registry",
        "domainwise.runs": "domainwise.protocol.runs",
        "domainwise.protocol.seeds": "domainwise.core.seeds",
        "domainwise.shipping": "domainwise.models",
        "domainwise.shipping.fit": "domainwise.models.fit",
        "domainwise.shipping.folder": "domainwise.models.folder",
        "domainwise.shipping.model": "domainwise.models.model",
        "domainwise.shipping.tune": "domainwise.models.tune",
        "domainwise.algorithms.ensemble": "domainwise.algorithms.adversarial",
        "domainwise.algorithms.linear": "domainwise.algorithms.adversarial",
        "domainwise.analysis.penalties": "domainwise.engine.penalties",
    }
)

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "ERM",
    "NETWORKS",
    "Algorithm",
    "ByScale",
    "Choice",
    "DomainGeneralizer",
    "Environments",
    "Fixed",
    "Interrupted",
    "LogInteger",
    "LogUniform",
    "Model",
    "Network",
    "Problem",
    "Record",
    "Run",
    "TrainingResult",
    "Uniform",
    "UniformInteger",
    "UserError",
    "algorithm",
    "calibrate",
    "compare",
    "dataset",
    "dfr",
    "ensemble",
    "extract_features",
    "fit",
    "interpolate",
    "list_algorithms",
    "list_datasets",
    "list_networks",
    "load_dataset",
    "load_model",
    "network",
    "plan",
    "report",
    "soup",
    "sweep",
    "table",
    "train",
    "tune",
]


def list_algorithms(pattern: str = "*") -> list[str]:
    """The names of all algorithms that match a pattern like "*DAT"."""
    from domainwise.algorithms import ALGORITHMS

    return ALGORITHMS.names(pattern)


def list_datasets(pattern: str = "*") -> list[str]:
    """The names of all datasets that match a pattern like "*MNIST*"."""
    from domainwise.data.catalogue import DATASETS

    return DATASETS.names(pattern)


def list_networks(pattern: str = "*") -> list[str]:
    """The names of all networks that match a pattern like "resnet*"."""
    from domainwise.nets import NETWORKS

    return NETWORKS.names(pattern)


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        deprecation.warn(f"domainwise.{name}", f"domainwise.{_RENAMED[name]}")
        name = _RENAMED[name]
    inner = "plan_run" if name == "plan" else name
    if inner not in _HOME:
        raise AttributeError(f"module 'domainwise' has no attribute {name!r}")
    return getattr(import_module(f"domainwise.{_HOME[inner]}"), inner)


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])
