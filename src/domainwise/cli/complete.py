"""Shell completion of names. Registries are imported on demand, and none of them imports torch."""

from collections.abc import Callable, Iterable

Complete = Callable[[str], list[str]]


def among(*words: str) -> Complete:
    """Completes a few fixed words."""
    return lambda incomplete: _starting(incomplete, words)


def algorithms(incomplete: str) -> list[str]:
    """Completes the last of several names with commas between."""
    from domainwise.algorithms import ALGORITHMS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _starting(last, ALGORITHMS)]


def datasets(incomplete: str) -> list[str]:
    from domainwise.data.catalogue import DATASETS

    return _starting(incomplete, DATASETS)


def networks(incomplete: str) -> list[str]:
    from domainwise.nets import NETWORKS

    return _starting(incomplete, NETWORKS)


def _starting(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
