"""Named things that register themselves by a decorator: algorithms, datasets, networks."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from domainwise import plugins
from domainwise.errors import UserError, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """A dictionary of named things whose look-up error names the nearest name.

    Plugins are imported before a name is taken for unknown, and before names are listed.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        if name in self._things:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._things[name] = thing
        return thing

    def find(self, name: str) -> T:
        if name not in self:
            raise UserError(f"{unknown(self.kind, name, self._things)} (one of your own: name its file with --plugin)")
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        plugins.load()
        return iter(self._things)

    def __contains__(self, name: object) -> bool:
        if name not in self._things:
            plugins.load()
        return name in self._things

    def items(self) -> Iterator[tuple[str, T]]:
        plugins.load()
        return iter(self._things.items())


def first_line(thing: object) -> str:
    """The first paragraph of a docstring as one line: what `domainwise list` shows."""
    paragraph = (thing.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split())
