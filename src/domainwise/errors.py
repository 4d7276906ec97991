"""What goes wrong through no fault of the program."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's: one line that says what was wrong, where, and what to do. Commands exit with 2."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that is not registered, with the nearest name that is."""
    names = sorted(known)
    by_lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[near[0]]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return UserError(f"unknown {kind} {str(name)!r}: {hint}")
