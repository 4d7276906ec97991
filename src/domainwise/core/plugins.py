"""Algorithms, networks and datasets of users: Python files or installed packages that register them when imported.

    DOMAINWISE_PLUGINS=mine.py domainwise sweep --algorithms ERM,Mine ...     (several with the system's path separator)
    domainwise --plugin mine.py sweep --algorithms ERM,Mine ...

An installed package names its module in the entry point group `domainwise.plugins`. Plugins are imported when a name is
looked up that the package itself does not know, or when names are listed; worker processes import the same files.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.core.files import write

VARIABLE = "DOMAINWISE_PLUGINS"
GROUP = "domainwise.plugins"
NAMES_FILE = "plugins.txt"

_loaded: set[str] = set()


def files() -> tuple[str, ...]:
    """The plugin files in use, as absolute paths."""
    named = os.environ.get(VARIABLE, "").split(os.pathsep)
    return tuple(str(Path(name).expanduser().absolute()) for name in named if name)


def add(paths: Iterable[Path | str]) -> None:
    """Adds files to those in use, in this process and in those it starts."""
    added = (str(Path(path).expanduser().absolute()) for path in paths)
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys((*files(), *added)))


def save_names(folder: Path) -> None:
    """Writes the names of the files in use to a sweep's folder: its plans cannot be read without them."""
    if files():
        names = dict.fromkeys((*saved_names(folder), *files()))
        write(folder / NAMES_FILE, "".join(f"{name}\n" for name in names))


def saved_names(folder: Path) -> tuple[str, ...]:
    """The files that a folder's sweeps were made with.

    They are only shown, never imported: a folder from anywhere must not decide which code runs.
    """
    try:
        return tuple((folder / NAMES_FILE).read_text().splitlines())
    except (OSError, ValueError):
        return ()


@cache
def installed() -> tuple[EntryPoint, ...]:
    """The plugins of installed packages; cached, since every lookup of an unknown name asks for them."""
    return tuple(entry_points(group=GROUP))


def load() -> None:
    """Imports the plugins in use that are not yet imported."""
    for entry in installed():
        if entry.value not in _loaded:
            _loaded.add(entry.value)
            try:
                entry.load()
            except Exception as error:
                raise _broken(f"{entry.name} ({entry.value})", error) from None
    for path in files():
        if path not in _loaded:
            _loaded.add(path)
            _import(Path(path))


def _import(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"plugin {path} is not a file: name a Python file, here or in {VARIABLE}", argument="plugin")
    name = f"domainwise_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"plugin {path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _broken(str(path), error) from None


def _broken(plugin: str, error: Exception) -> UserError:
    """One line with the line of the plugin that failed."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    line = getattr(error, "lineno", None) or (trace.tb_lineno if trace else None)
    return UserError(f"plugin {plugin} failed at line {line}: {type(error).__name__}: {error}")
