"""domainwise: train and judge models that must work on domains they have never seen."""

from domainwise.algorithms import ALGORITHMS, Algorithm, Problem, algorithm
from domainwise.data import DATASETS, Environments, dataset
from domainwise.engine.train import Interrupted, Outcome, train
from domainwise.errors import UserError
from domainwise.nets import NETWORKS, Network, network
from domainwise.records import Record
from domainwise.runs import Run

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "NETWORKS",
    "Algorithm",
    "Environments",
    "Interrupted",
    "Network",
    "Outcome",
    "Problem",
    "Record",
    "Run",
    "UserError",
    "algorithm",
    "dataset",
    "network",
    "train",
]
