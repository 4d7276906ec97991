"""Scores made by hand, written by names."""

from collections.abc import Mapping

from domainwise.protocol.selection import Column, Method
from domainwise.protocol.statistics import Scores

ByTrial = Mapping[int, float]


def by_column(values: Mapping[str, ByTrial]) -> dict[Column, dict[int, float]]:
    """{"photo": {trial: accuracy}}, or after training on one domain {"sketch > photo": ...}."""
    return {column(name): dict(by_trial) for name, by_trial in values.items()}


def column(name: str) -> Column:
    source, arrow, unseen = name.partition(" > ")
    return Column(unseen, source) if arrow else Column(name)


def scores(values: Mapping[str, Mapping[str, ByTrial]]) -> Scores:
    """{algorithm: {column: {trial: accuracy}}}."""
    return {Method(name): by_column(columns) for name, columns in values.items()}
