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


def shortened(value: int) -> str:
    """A number as a person reads it, whatever its length."""
    return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"
