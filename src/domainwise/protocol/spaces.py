"""Hyper-parameters: their defaults, search distributions and legal values.

A parameter maps one uniform number to a value. The number depends on draw, trial and the parameter's *name* only, so
adding a parameter never shifts another; draw 0 is the defaults.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from domainwise.core.errors import UserError, unknown
from domainwise.core.seeds import uniform

Value = float | int | str | bool | None
HParams = dict[str, Value]
Scale = Literal["small", "image"]
"""MNIST-sized problems ("small") and 224-pixel photographs ("image") search in different ranges."""


LARGEST_WHOLE = 10**9
"""No whole number of a hyper-parameter is larger, if it has no other limit."""


class Parameter(ABC):
    """One hyper-parameter: one of a few words, or a number within limits."""

    default: Any
    minimum: float = 0.0
    maximum: float = math.inf
    whole: bool = False
    """Whether it takes whole numbers only."""

    @abstractmethod
    def at(self, u: float) -> Value:
        """The value at quantile u in [0, 1) of the search distribution."""

    def fault(self, value: Value) -> str | None:
        """The complaint about an illegal value, or None."""
        options = getattr(self, "options", ())
        if any(isinstance(option, str) for option in options):
            return None if value in options else f"must be one of {', '.join(map(str, options))}"
        if value is None and self.default is None:
            return None
        kind = "a whole number" if self.whole else "a number"
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return f"must be {kind}"
        if not abs(value) <= 1e300:
            return f"must be {kind}, and finite"
        if value < self.minimum:
            return f"must be at least {self.minimum:g}"
        most = min(self.maximum, LARGEST_WHOLE) if self.whole else self.maximum
        return f"must be at most {most:g}" if value > most else None

    def tidy(self, value: Value) -> Value:
        """A legal value in its canonical form: 2 and 2.0 are one number."""
        return float(value) if isinstance(value, int) and not isinstance(value, bool) and not self.whole else value


@dataclass(frozen=True)
class Uniform(Parameter):
    """U(low, high)."""

    low: float
    high: float
    default: float
    minimum: float = 0.0
    maximum: float = math.inf

    def at(self, u: float) -> float:
        return self.low + u * (self.high - self.low)


@dataclass(frozen=True)
class LogUniform(Uniform):
    """10^U(low, high)."""

    def at(self, u: float) -> float:
        return float(10.0 ** super().at(u))


@dataclass(frozen=True)
class UniformInteger(Uniform):
    """floor(U(low, high))."""

    whole = True

    def at(self, u: float) -> int:
        return math.floor(super().at(u))


@dataclass(frozen=True)
class LogInteger(Parameter):
    """floor(base^U(low, high))."""

    low: float
    high: float
    default: int
    base: float = 10.0
    minimum: int = 0
    maximum: float = LARGEST_WHOLE
    whole = True

    def at(self, u: float) -> int:
        return math.floor(self.base ** (self.low + u * (self.high - self.low)))


@dataclass(frozen=True)
class Choice(Parameter):
    """One of a few values, all equally likely; if they are numbers, others are legal too."""

    options: tuple[Value, ...]
    default: Value
    minimum: float = 0.0
    maximum: float = math.inf

    @property
    def whole(self) -> bool:  # type: ignore[override]
        return all(isinstance(option, int) for option in self.options)

    def at(self, u: float) -> Value:
        return self.options[int(u * len(self.options))]


@dataclass(frozen=True)
class Fixed(Parameter):
    """A setting that a search leaves at its default."""

    default: Value
    options: tuple[str, ...] = ()
    minimum: float = 0.0
    maximum: float = math.inf
    whole: bool = False

    def at(self, u: float) -> Value:  # noqa: ARG002 (the same for every draw)
        return self.default


@dataclass(frozen=True)
class Added(Fixed):
    """A setting that a later version added: at its default it is no part of a run's values, whose identity stays."""


@dataclass(frozen=True)
class ByScale:
    """A parameter whose default and range depend on the scale of the problem."""

    small: Parameter
    image: Parameter


Space = Mapping[str, Parameter | ByScale]


def at_scale(space: Space, scale: Scale) -> dict[str, Parameter]:
    """The space of one scale."""
    return {name: getattr(p, scale) if isinstance(p, ByScale) else p for name, p in space.items()}


def draw(space: Mapping[str, Parameter], draw: int, trial: int) -> HParams:
    """The values of one draw of a search; draw 0 is the defaults. The trials of a draw have different values."""
    if draw == 0:
        return {name: parameter.default for name, parameter in recorded(space).items()}
    return {name: p.at(uniform("hparam", draw, trial, name)) for name, p in recorded(space).items()}


def recorded(space: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters whose values are always part of a run: all but those that were added."""
    return {name: parameter for name, parameter in space.items() if not isinstance(parameter, Added)}


def override(space: Mapping[str, Parameter], values: HParams, fixed: Mapping[str, Value], algorithm: str) -> HParams:
    """The values, with those that the user fixed in their place; unknown names and illegal values are user errors."""
    result = dict(values)
    for name, value in fixed.items():
        if name not in space:
            raise unknown(f"hyper-parameter of {algorithm}", name, space)
        if (fault := space[name].fault(value)) is not None:
            raise UserError(f"{algorithm}: hyper-parameter {name}={value!r} {fault}")
        result[name] = space[name].tidy(value)
        if isinstance(space[name], Added) and result[name] == space[name].default:
            del result[name]
    return result
