"""Named things that register themselves by a decorator: algorithms, datasets, networks.

    @algorithm
    class DAT(...):
        \"\"\"One perturbation per domain ...\"\"\"

A registry is a mapping. It knows the names, summaries and options of built-in things from their source alone, and
imports a module when one of its names is first looked up: to list algorithms takes no torch.
"""

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

from domainwise.core import plugins
from domainwise.core.errors import UnknownName, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Declaration:
    """What the source of a module says of one thing that it registers."""

    module: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)


class Registry(Mapping[str, T]):
    """The things of one kind by name; an unknown name is an error that suggests the nearest one.

    `modules` register the built-in things by the decorator of this name; without one, the modules are imported when
    anything is looked up. Plugins are imported before a name counts as unknown and before names are listed. Names that
    begin with one of the `families` are not listed: the function `named` of the family's module makes their thing.
    """

    def __init__(
        self,
        kind: str,
        modules: tuple[str, ...] = (),
        decorator: str = "",
        families: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.modules, self.decorator, self.families = kind, modules, decorator, dict(families or {})
        self._things: dict[str, T] = {}
        self._options: dict[str, Mapping[str, Any]] = {}

    def add(self, name: str, thing: T, **options: Any) -> T:
        if name in self._things:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._things[name] = thing
        self._options[name] = options
        return thing

    def __getitem__(self, name: str) -> T:
        if family := self._family(name):
            return import_module(family).named(name)
        if name not in self:
            message = str(unknown(self.kind, name, self))
            end = "" if message.endswith("?") else "."
            raise UnknownName(f"{message}{end} Load your own as a plugin", argument="plugin")
        if name not in self._things:
            import_module(self._declared[name].module)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        if self._family(name):
            return True
        if name not in self._declared and name not in self._things:
            plugins.load()
        return name in self._declared or name in self._things

    def __iter__(self) -> Iterator[str]:
        plugins.load()
        return iter(dict.fromkeys((*self._declared, *self._things)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<{len(self)} {self.kind}s: {', '.join(self)}>"

    def names(self, pattern: str = "*") -> list[str]:
        """The names that match a pattern as a shell reads it."""
        return [name for name in self if fnmatchcase(name, pattern)]

    def summary(self, name: str) -> str:
        """The first paragraph of a thing's docstring, as one line."""
        declared = self._declared.get(name)
        return declared.summary if declared else first_paragraph(self[name].__doc__)

    def options(self, name: str) -> Mapping[str, Any]:
        """The keyword arguments that the thing was registered with; none for one of a family."""
        if self._family(name):
            return {}
        if name not in self:
            raise UnknownName(str(unknown(self.kind, name, self)))
        declared = self._declared.get(name)
        return declared.options if declared else self._options[name]

    def _family(self, name: object) -> str:
        """The module of the family that a name belongs to; empty for none."""
        return next((module for start, module in self.families.items() if str(name).startswith(start)), "")

    @cached_property
    def _declared(self) -> dict[str, Declaration]:
        if not self.decorator:
            for module in self.modules:
                import_module(module)
            return {}
        return {name: one for module in self.modules for name, one in declarations(module, self.decorator)}


def declarations(module: str, decorator: str) -> Iterator[tuple[str, Declaration]]:
    """The top-level classes and functions of a module under this decorator, in order, without importing the module."""
    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module) if spec and spec.loader else None  # type: ignore[attr-defined]
    for node in ast.parse(source or "").body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        for mark in node.decorator_list:
            call = mark if isinstance(mark, ast.Call) else ast.Call(mark, [], [])
            if isinstance(call.func, ast.Name) and call.func.id == decorator:
                name = ast.literal_eval(call.args[0]) if call.args else node.name
                options = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
                yield name, Declaration(module, first_paragraph(ast.get_docstring(node)), options)


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring as one line: what `domainwise list` shows."""
    return " ".join((text or "").strip().split("\n\n")[0].split())
