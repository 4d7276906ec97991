"""JSON from files as checked values. Files may be damaged, or come from anywhere: what is read here can be relied on.

`parse` and `check` turn JSON into a dataclass by the annotations of its fields, or into any annotated type. Types,
ranges, lengths and finiteness are checked; unknown, missing and repeated fields are errors. Every error is a UserError
that names the file (and the line, if `where` does), the field, and what to do.
"""

import dataclasses
import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from domainwise.core import files
from domainwise.core.errors import UserError

LARGEST_FILE = 1 << 24
"""Bytes of a JSON file, unless its reader says otherwise."""
LONGEST_TEXT = 1_000
LONGEST_LIST = 1_000_000
DEEPEST = 20
LARGEST_NUMBER = 2**63 - 1

SCALARS: dict[Any, Any] = {str: str, float: (int, float), int: int, bool: bool, type(None): type(None)}
"""Of which classes a value can be that has the type of an annotation; another need not be tried."""

T = TypeVar("T")
Checker = Callable[[Any], Any]


@dataclass(frozen=True)
class Range:
    """Limits of a number, inclusive, for an annotation: Annotated[int, Range(0)]."""

    low: int = -LARGEST_NUMBER
    high: int = LARGEST_NUMBER


@dataclass(frozen=True)
class Longest:
    """The most characters of a text, for an annotation."""

    length: int
    nul: bool = True
    """Whether it may contain NUL, which no path may."""


@dataclass(frozen=True)
class OneOf:
    """The texts that a text can be, for an annotation."""

    names: tuple[str, ...]


Count = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
Fraction = Annotated[float, Range(0, 1)]
Seconds = Annotated[float, Range(0)]
FilePath = Annotated[str, Longest(4_200, nul=False)]


def read_file(path: Path | str, advice: str, limit: int = LARGEST_FILE) -> bytes:
    """The bytes of a plain file of at most `limit` bytes. One that is not there is a FileNotFoundError."""
    return files.read(path, limit=limit, advice=advice)


def parse(data: bytes, kind: type[T], where: object, advice: str) -> T:
    """JSON text as a value of this type."""
    return check(parse_any(data, where, advice), kind, where, advice)


def parse_any(data: bytes, where: object, advice: str, *, nan: bool = False) -> Any:
    """Strict JSON: UTF-8, without repeated names, and without NaN and infinities unless `nan`. Values are unchecked."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_distinct, parse_constant=None if nan else _refuse)
    except UnicodeDecodeError:
        raise UserError(f"{where}: not UTF-8: {advice}") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply: {advice}") from None
    except _WrongError as error:
        raise UserError(f"{where}: {error}: {advice}") from None
    except ValueError:
        raise UserError(f"{where}: cut short or no JSON: {advice}") from None


def check(value: Any, kind: type[T], where: object, advice: str) -> T:
    """Values of JSON as a value of this type."""
    try:
        return cast(T, _checker(kind)(value))  # type: ignore[arg-type]
    except _WrongError as error:
        raise UserError(f"{where}: {error}: {advice}") from None


def checksum(content: Mapping[str, Any]) -> str:
    """The SHA-256 of JSON values, however they are laid out in their file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class _WrongError(ValueError):
    """A value that is not what it must be; `place` is the path of names that leads to it."""

    def __init__(self, complaint: str, place: tuple[str, ...] = ()) -> None:
        super().__init__(complaint)
        self.complaint, self.place = complaint, place

    def __str__(self) -> str:
        return f'"{_short(".".join(self.place))}" {self.complaint}' if self.place else self.complaint

    def inside(self, name: str) -> "_WrongError":
        return _WrongError(self.complaint, (name, *self.place))


def _wrong(value: Any, expected: str) -> _WrongError:
    containers = "an object" if isinstance(value, dict) else "a list" if isinstance(value, (list, tuple)) else ""
    shown = containers or json.dumps(value, default=repr)
    return _WrongError(f"must be {expected}, not {_short(shown)}")


def _short(text: str, most: int = 60) -> str:
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= most else f"{text[:most]}..."


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise _WrongError(f'"{_short(next(name for name in names if names.count(name) > 1))}" is there twice')
    return result


def _refuse(constant: str) -> Any:
    raise _WrongError(f"{constant} is no JSON")


def _text(value: Any, longest: int = LONGEST_TEXT, nul: bool = True) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise _wrong(value, f"a text of at most {longest:,} characters")
    if not value.isascii() and any("\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" for c in value):
        raise _wrong(value, "Unicode text")  # U+DC80 to U+DCFF are the bytes of file names that are not UTF-8
    if not nul and "\0" in value:
        raise _wrong(value, "a text without NUL")
    return value


def _integer(value: Any, low: int = -LARGEST_NUMBER, high: int = LARGEST_NUMBER) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(value, f"a whole number{_limits(low, high)}")
    return value


def _number(value: Any, low: int = -LARGEST_NUMBER, high: int = LARGEST_NUMBER) -> float:
    """Whole numbers stay whole: identities depend on how a number was written."""
    limited = (low, high) != (-LARGEST_NUMBER, LARGEST_NUMBER)
    good = not isinstance(value, bool) and isinstance(value, (int, float))
    if good and isinstance(value, float) and not limited:
        good = math.isfinite(value)
    elif good:
        good = low <= value <= high
    if not good:
        raise _wrong(value, f"a {'' if limited else 'finite '}number{_limits(low, high)}")
    return cast(float, value)


def _limits(low: int, high: int) -> str:
    above = f" from {low}" if low > -LARGEST_NUMBER else ""
    return f"{above} to {high}" if high < LARGEST_NUMBER else above


def _plain(value: Any, depth: int = 0) -> Any:
    """Any JSON, of bounded depth and size, with finite numbers."""
    if depth > DEEPEST:
        raise _WrongError(f"must not be nested deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        return {_text(name): _within(name, lambda item: _plain(item, depth + 1), item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, str):
        return _text(value, 10 * LONGEST_TEXT)
    return value if value is None or isinstance(value, bool) else _number(value)


def _within(name: str, item_check: Checker, value: Any) -> Any:
    try:
        return item_check(value)
    except _WrongError as error:
        raise error.inside(name) from None


@cache
def _checker(kind: Any) -> Checker:
    """The function that checks values of a type."""
    simple: dict[Any, Checker] = {Any: _plain, str: _text, int: _integer, float: _number}
    if kind in simple:
        return simple[kind]
    if kind is bool:
        return lambda value: value if isinstance(value, bool) else _raise(_wrong(value, "true or false"))
    if kind is None or kind is type(None):
        return lambda value: value if value is None else _raise(_wrong(value, "null"))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _limited(*arguments)
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, types.UnionType):
        return _any_of(arguments)
    if origin is tuple and arguments[1:] != (...,):
        return _row([_checker(one) for one in arguments])
    if origin in (tuple, list, Sequence):
        return _list(_checker(arguments[0]), list if origin is list else tuple, _number_range(arguments[0]))
    if origin in (dict, Mapping):
        return _mapping(_checker(arguments[1]))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _object(kind)
    raise TypeError(f"no check for {kind}")


def _raise(error: Exception) -> Any:
    raise error


def _one_of(values: Sequence[Any]) -> Checker:
    expected = f"one of {', '.join(map(json.dumps, values))}"
    return lambda value: value if value in values else _raise(_wrong(value, expected))


def _limited(kind: Any, limit: Range | Longest | OneOf) -> Checker:
    if isinstance(limit, OneOf):
        return _one_of(limit.names)
    if isinstance(limit, Longest):
        return lambda value: _text(value, limit.length, limit.nul)
    whole = kind is int
    return lambda value: (_integer if whole else _number)(value, limit.low, limit.high)


def _any_of(kinds: Sequence[Any]) -> Checker:
    """The first of the types that a value has; one that has none is complained of as not being of the first."""
    checks = [(_checker(kind), SCALARS.get(kind, object)) for kind in kinds]

    def read(value: Any) -> Any:
        for item_check, possible in checks:
            if isinstance(value, possible):
                try:
                    return item_check(value)
                except _WrongError:
                    continue
        return checks[0][0](value)

    return read


def _row(checks: Sequence[Checker]) -> Checker:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(checks):
            raise _wrong(value, f"a list of {len(checks)}")
        return tuple(one(item) for one, item in zip(checks, value, strict=True))

    return read


def _number_range(kind: Any) -> Range | None:
    """The limits of a floating-point type, None for other types."""
    if get_origin(kind) is Annotated and get_args(kind)[0] is float:
        return cast(Range, get_args(kind)[1])
    return Range() if kind is float else None


def _list(item_check: Checker, kind: Callable[[Any], Any], numbers: Range | None) -> Checker:
    """Of `numbers`, all are checked at once if possible."""

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) > LONGEST_LIST:
            raise _wrong(value, f"a list of at most {LONGEST_LIST:,}")
        finite = set(map(type, value)) == {float} and all(map(math.isfinite, value))
        if finite and numbers and (numbers == Range() or numbers.low <= min(value) <= max(value) <= numbers.high):
            return kind(value)
        return kind(item_check(item) for item in value)

    return read


def _mapping(item_check: Checker) -> Checker:
    def read(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > LONGEST_LIST:
            raise _wrong(value, "an object")
        return {_text(name): _within(name, item_check, item) for name, item in value.items()}

    return read


def _object(kind: type) -> Checker:
    hints = get_type_hints(kind, include_extras=True)
    fields = {one.name: _checker(hints[one.name]) for one in dataclasses.fields(kind) if one.init}
    needed = [
        one.name
        for one in dataclasses.fields(kind)
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        if unknown := [name for name in value if name not in fields]:
            raise _WrongError("is an unknown field", (unknown[0],))
        if missing := [name for name in needed if name not in value]:
            raise _WrongError("is missing", (missing[0],))
        return kind(**{name: _within(name, fields[name], item) for name, item in value.items()})

    return read
