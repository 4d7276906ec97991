"""The largest numbers that a user may ask for: far beyond any use, and small enough to compute with.

A larger one is a mistake of typing, and an error before anything is allocated. Hyper-parameters have their limits in
`protocol.spaces`.
"""

from domainwise.core.errors import UserError

STEPS = 10**9
"""Steps of a run, between evaluations, and numbers of draws and trials."""
RUNS = 10**6
"""Runs of a plan: more would take hours to list."""
SEED = 2**63 - 1
THREADS = 4096
IMAGE_SIZE = 8192
"""Pixels a side."""


def check(name: str, value: int, least: int, most: int, argument: str = "") -> int:
    """The value; outside of its limits it is a UserError."""
    if value < least:
        raise UserError(f"{name} must be at least {least}, not {shortened(value)}", argument=argument)
    if value > most:
        raise UserError(f"{name} must be at most {most:,}, not {shortened(value)}", argument=argument)
    return value


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str, argument: str) -> float:
    """ "45m" -> 2700.0."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or len(number) > 6 or unit not in UNITS or int(number) == 0:
        reason = f"{text[:40]!r} is no length of time: give a number and a unit, e.g. 45m, 8h or 2d"
        raise UserError(reason, argument=argument)
    return float(int(number) * UNITS[unit])


def shortened(value: int) -> str:
    """A number as a person reads it, whatever its length."""
    return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"
