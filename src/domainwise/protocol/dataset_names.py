"""What the datasets in a folder of runs are called, and which of them a user means by a name.

A folder of images goes by its name; where its images changed between runs it is several datasets of that name.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from domainwise.core.errors import unknown

FOLDER = re.compile(r"(?P<path>/.*)#(?P<state>[0-9a-f]{16})(?P<skipping>,skip-bad)?", re.DOTALL)
"""The name of a folder's dataset: where it lies, the state of its files, and whether bad images are left out."""


def title(name: str) -> str:
    """What tables and pictures call a dataset: a folder by its own name, without its path."""
    folder = FOLDER.fullmatch(name)
    return Path(folder["path"]).name if folder else name


def titles(datasets: Iterable[str]) -> dict[str, str]:
    """{dataset: its title}; where others have the same, with the beginning of its state, or all that is known of it."""
    forms = {name: _forms(name) for name in datasets}
    taken = [form for own in forms.values() for form in dict.fromkeys(own)]
    return {name: next(form for form in own if taken.count(form) == 1) for name, own in forms.items()}


def _forms(name: str) -> tuple[str, str, str]:
    folder = FOLDER.fullmatch(name)
    state = f" #{folder['state'][:6]}{folder['skipping'] or ''}" if folder else ""
    return title(name), f"{title(name)}{state}", name


def means(name: str, dataset: str) -> bool:
    """Whether a user may mean a dataset by a title, alone or with the state, or by all that is known of it."""
    return name in _forms(dataset)


def called(name: str, datasets: Iterable[str], where: Path) -> set[str]:
    """Those that a user may mean."""
    known = set(datasets)
    found = {dataset for dataset in known if means(name, dataset)}
    if not found:
        raise unknown(f"dataset in {where}", name, titles(known).values())
    return found
