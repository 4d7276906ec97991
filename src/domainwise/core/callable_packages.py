"""Packages with the name of a public function: `dw.sweep(...)`, `dw.report(...)`.

Importing any module of a package binds the package's name at the root, where it hides the function of that name. So
these packages can be called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def call(package: str, module: str, function: str) -> None:
    """From now on, a call of the package is one of a function in its module, which is imported then."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return getattr(import_module(f"{package}.{module}"), function)(*args, **options)

    sys.modules[package].__class__ = CallablePackage
