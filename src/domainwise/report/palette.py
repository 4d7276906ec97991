"""Colours that colour-blind readers can tell apart, on white and on black, for the page and for figures."""

from collections.abc import Iterable

LIGHT = ("#6b7280", "#0072b2", "#d55e00", "#00855f", "#b3558f", "#b97f00", "#3a93cf", "#6d53a8")
DARK = ("#a3aab5", "#56b4e9", "#ff8a4c", "#35c79c", "#e39ac4", "#f0b429", "#9cc4f5", "#b9a0ec")
"""Neutral first."""
NEUTRAL, FIRST = "ERM", "DAT"
"""Who always gets the neutral and the first colour."""


def slots(methods: Iterable[str]) -> dict[str, tuple[int, int]]:
    """{method: (colour, dash)}: where colours run out they come again with other dashes.

    A method that was searched in several spaces is one for each, and the one with the shortest name has its colour.
    """
    names = list(dict.fromkeys(methods))
    neutral, first = (
        next((name for name in sorted(names, key=len) if name.split(" (")[0] == known), known)
        for known in (NEUTRAL, FIRST)
    )
    rest = sorted((name for name in names if name != neutral), key=lambda name: name != first)
    colours = len(LIGHT) - 1
    return {neutral: (0, 0)} | {name: (1 + i % colours, i // colours) for i, name in enumerate(rest)}
