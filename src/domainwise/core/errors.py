"""Errors that the user can fix: one line each."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user: one line that says what was wrong, where, and what to do. Commands exit with 2.

    `argument` names the Python argument that fixes it, if there is one; the command line then adds its option.
    """

    def __init__(self, message: str, *, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


class UnknownName(UserError, KeyError):
    """A name that is not registered. It is a KeyError too, so that registries behave like dictionaries."""

    __str__ = Exception.__str__


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for an unknown name, with the nearest known one."""
    names = sorted(known)
    by_lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[near[0]]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return UnknownName(f"unknown {kind} {str(name)!r}: {hint}")
