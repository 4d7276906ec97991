"""A model as a service over HTTP: `create_app` makes the application, `run` answers requests with it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from domainwise.serving.app import create_app
    from domainwise.serving.limits import Limits
    from domainwise.serving.server import run

__all__ = ["Limits", "create_app", "run"]
_HOMES = {"create_app": "app", "Limits": "limits", "run": "server"}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use: reading the options of the command imports no torch."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(f"domainwise.serving.{_HOMES[name]}"), name)
