"""The algorithms, one decorated class each, grouped by family."""

from domainwise.algorithms import (  # noqa: F401 (each registers its algorithms)
    adversarial,
    ensemble,
    linear,
    match,
    meta,
    mix,
    risk,
    style,
    transport,
)
from domainwise.algorithms.base import ALGORITHMS, Algorithm, Problem, algorithm

__all__ = ["ALGORITHMS", "Algorithm", "Problem", "algorithm"]
