"""domainwise: train and judge models that must work on domains they have never seen."""

from typing import TYPE_CHECKING, Any

from domainwise.algorithms import ALGORITHMS, Algorithm, Problem, algorithm
from domainwise.data import DATASETS, Environments, dataset
from domainwise.engine.train import Interrupted, Outcome, train
from domainwise.errors import UserError
from domainwise.nets import NETWORKS, Network, network
from domainwise.records import Record
from domainwise.runs import Run

if TYPE_CHECKING:
    from domainwise.shipping.fit import fit
    from domainwise.shipping.folder import load
    from domainwise.shipping.model import Model

__version__ = "0.1.0"

_LATER = {
    "Model": "domainwise.shipping.model",
    "fit": "domainwise.shipping.fit",
    "load": "domainwise.shipping.folder",
}
"""Names that are imported when first asked for, so that `import domainwise` stays light."""

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "NETWORKS",
    "Algorithm",
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
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'domainwise' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
