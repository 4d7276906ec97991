"""Durations, counts and commands in words."""


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def command(*words: str) -> str:
    """What to type where no call in Python does it: domainwise data get PACS."""
    return " ".join(("domainwise", *words))


def counted(number: int, what: str) -> str:
    """ "1 run", "2 runs", "3 classes"."""
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number} {what}{ending}"
