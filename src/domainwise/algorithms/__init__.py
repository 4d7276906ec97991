"""The algorithms, one decorated class each, grouped by family."""

from domainwise.algorithms import (  # noqa: F401, I001 (each registers its algorithms; this order is the lists' order)
    risk,
    adversarial,
    linear,
    ensemble,
    transport,
    match,
    mix,
    meta,
    style,
)
from domainwise.algorithms.base import ALGORITHMS, Algorithm, Problem, algorithm

__all__ = ["ALGORITHMS", "Algorithm", "Problem", "algorithm"]
