"""The algorithms, one decorated class each, grouped by family."""

from domainwise.algorithms import adversarial as _adversarial  # noqa: F401 (registers its algorithms)
from domainwise.algorithms import risk as _risk  # noqa: F401
from domainwise.algorithms.base import ALGORITHMS, Algorithm, Problem, algorithm

__all__ = ["ALGORITHMS", "Algorithm", "Problem", "algorithm"]
