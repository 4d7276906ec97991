"""Geometry of the page's small drawings: error bars in tables, and panels of learning curves. Templates draw it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import MaxNLocator

from domainwise.protocol.selection import Column, Method
from domainwise.reports.learning_curves import LearningCurve

WIDTH, HEIGHT = 270, 190
LEFT, RIGHT, TOP, BOTTOM = 30, 10, 8, 24
LEAST = 5.0
"""Points that an axis of accuracies spans at least, so that next to nothing does not look like much."""


@dataclass(frozen=True)
class AxisScale:
    """Maps numbers between `low` and `high` linearly to positions between `start` and `end`."""

    low: float
    high: float
    start: float = 4.0
    end: float = 96.0

    @classmethod
    def around(cls, values: Iterable[float]) -> "AxisScale":
        """Just wide enough for these values."""
        known = list(values)
        low, high = min(known), max(known)
        return cls(low, high) if high > low else cls(low - 1, high + 1)

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class Bar:
    """A mean and its standard error on a scale, with a mark for the number it is compared to."""

    left: float
    at: float
    right: float
    mark: float | None = None

    @classmethod
    def of(cls, scale: AxisScale, mean: float, error: float | None, mark: float | None = None) -> "Bar":
        spread = error or 0.0
        place = None if mark is None else scale(mark)
        return cls(scale(mean - spread), scale(mean), scale(mean + spread), place)


@dataclass(frozen=True)
class Line:
    """A learning curve as SVG paths."""

    method: Method
    path: str
    band: str
    chosen: tuple[tuple[float, float, str], ...]
    """(x, y, words)."""
    points: tuple[tuple[float, float, int, str], ...]
    """(x, y, step, value in words), for the pointer."""


@dataclass(frozen=True)
class Panel:
    """The curves of one unseen domain, with axes."""

    title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    chance: float | None = None
    """Where the accuracy of guessing lies, if within the axis."""

    @property
    def pointer(self) -> list[dict[str, Any]]:
        """What the pointer shows, for the page's script."""
        return [{"method": str(line.method), "points": line.points} for line in self.lines]


def panels(
    by_column: dict[Column, list[LearningCurve]], chance: float | None = None, digits: int = 1, unit: str = " %"
) -> list[Panel]:
    """A panel per column on common axes; accuracies before training may lie below them. Without a unit, any values."""
    everything = [curve for curves in by_column.values() for curve in curves]
    last = max((one.steps[-1] for one in everything), default=0) or 1
    low, high = _range(everything) if unit else _free_range(everything)
    x = AxisScale(0, last, LEFT, WIDTH - RIGHT)
    y = AxisScale(low, high, HEIGHT - BOTTOM, TOP)
    x_ticks = tuple(
        (x(tick), f"{tick:g}") for tick in MaxNLocator(4, integer=True).tick_values(0, last) if tick <= last
    )
    y_ticks = tuple((y(tick), f"{tick:g}") for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high)
    mark = y(chance) if chance is not None and low <= chance <= high else None
    return [
        Panel(str(column), tuple(_line(one, x, y, digits, unit) for one in curves), x_ticks, y_ticks, mark)
        for column, curves in by_column.items()
    ]


def _range(everything: Sequence[LearningCurve]) -> tuple[float, float]:
    """Of all means and chosen points, but for the first evaluation where there are several: it is chance."""
    values = [value for one in everything for value in one.mean[min(1, len(one.mean) - 1) :]]
    values += [accuracy for one in everything for _, accuracy, _ in one.chosen]
    low, high = min(values, default=0.0), max(values, default=100.0)
    middle, span = (low + high) / 2, max(1.1 * (high - low), LEAST)
    return max(0.0, min(middle - span / 2, 100 - span)), min(100.0, max(middle + span / 2, span))


def _free_range(everything: Sequence[LearningCurve]) -> tuple[float, float]:
    """Of all means."""
    values = [value for one in everything for value in one.mean]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _line(one: LearningCurve, x: AxisScale, y: AxisScale, digits: int, unit: str) -> Line:
    def path(values: Iterable[float], steps: Iterable[int]) -> str:
        return "L".join(f"{x(step):g},{y(value):g}" for step, value in zip(steps, values, strict=True))

    upper = [mean + error for mean, error in zip(one.mean, one.error, strict=True)]
    lower = [mean - error for mean, error in zip(one.mean, one.error, strict=True)]
    band = f"M{path(upper, one.steps)}L{path(lower[::-1], one.steps[::-1])}Z" if any(one.error) else ""
    words = "{}, trial {}: {:.{}f}{} at step {}"
    chosen = tuple((x(s), y(a), words.format(one.method, trial, a, digits, unit, s)) for s, a, trial in one.chosen)
    points = tuple(
        (x(step), y(e.mean), step, f"{e.mean:.{digits}f}" + ("" if e.error is None else f" ± {e.error:.{digits}f}"))
        for step, e in zip(one.steps, one.estimates, strict=True)
    )
    return Line(one.method, f"M{path(one.mean, one.steps)}", band, chosen, points)
