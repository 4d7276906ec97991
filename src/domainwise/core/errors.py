"""Errors that the user can fix: one line each."""

import difflib
import errno
import os
from collections.abc import Iterable

STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""A disk that is full, over its quota, read-only or broken: nothing is wrong with what was to be written."""


class UserError(Exception):
    """A mistake of the user: one line that says what was wrong, where, and what to do. Commands exit with 2.

    `argument` names the Python argument that fixes it, if there is one; the command line then adds its option.
    """

    def __init__(self, message: str, *, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


class Unsuited(UserError):
    """A method that cannot work with this network, these domains, this recipe or so few steps; others may."""


class StorageError(UserError):
    """A disk does not take what is to be written. It interrupts a training, which can be continued."""

    @classmethod
    def of(cls, error: OSError, folder: object = None) -> "StorageError":
        """From the error of a write, which often names no file."""
        where = error.filename or folder
        advice = "make room there; what was saved is kept, and the same command continues"
        return cls(f"{os.strerror(error.errno or errno.EIO)}: cannot write{f' to {where}' if where else ''}: {advice}")


class UnknownName(UserError, KeyError):
    """A name that is not registered. It is a KeyError too, so that registries behave like dictionaries."""

    __str__ = Exception.__str__


def one_line(error: BaseException, longest: int = 200) -> str:
    """What the error of a library says, on one line and not endless, for the message of a UserError."""
    return " ".join(str(error).split())[:longest] or type(error).__name__


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for an unknown name, with the nearest known one."""
    names = sorted(known)
    by_lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[near[0]]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return UnknownName(f"unknown {kind} {str(name)!r}: {hint}")
