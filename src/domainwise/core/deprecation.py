"""Names and modules of the last release keep working for one release more, with a DeprecationWarning."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    warnings.warn(f"{old} is now {new}; the old name goes with the next release", DeprecationWarning, stacklevel)


class MovedModules(MetaPathFinder, Loader):
    """Finds modules under their old names: each attribute is looked up in the new module when it is asked for."""

    def __init__(self, moved: Mapping[str, str]) -> None:
        self.moved = moved

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target  # the name is enough
        return ModuleSpec(fullname, self) if fullname in self.moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = self.moved[spec.name]

        def look_up(name: str) -> Any:
            if not name.startswith("__"):
                warn(f"{spec.name}.{name}", f"{new}.{name}")
            return getattr(import_module(new), name)

        module = ModuleType(spec.name, f"Moved to {new}.")
        module.__getattr__ = look_up  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute: attributes come from the new module."""


def install(moved: Mapping[str, str]) -> None:
    """Makes old module names importable, once per process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules(moved))
