"""The names of datasets in tables and pages, and which dataset a user means by a name.

A folder or table of images goes by its name; where its images changed between runs it is several datasets of that name.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from domainwise.core.errors import unknown

FOLDER = re.compile(
    r"(?P<path>/.*)#(?P<state>[0-9a-f]{16})(?P<skipping>,skip-bad)?(?P<reading>\?[\w%=&.+-]*)?", re.DOTALL | re.ASCII
)
"""The name of the dataset of a folder or table: where it lies, the state of its files, whether bad images are left out,
and how it is read (`protocol.reading`)."""


METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Tables beside the images that they list: such a table goes by the name of its folder."""


def title(name: str) -> str:
    """A dataset's name in tables and pictures: that of a folder is without its path."""
    folder = FOLDER.fullmatch(name)
    return table_title(Path(folder["path"])) if folder else name


def table_title(path: Path) -> str:
    """The name of a folder or table of images."""
    named = path.parent if path.name in METADATA else path
    return named.name or str(path)


def stream_name(name: str) -> str:
    """What random streams depend on of a dataset's name: the last part of a path, whatever the title is."""
    folder = FOLDER.fullmatch(name)
    return Path(folder["path"]).name if folder else name


def path_or_name(name: str) -> str:
    """What a command takes: the path of a folder of images, or a dataset's name."""
    folder = FOLDER.fullmatch(name)
    return folder["path"] if folder else name


def titles(datasets: Iterable[str]) -> dict[str, str]:
    """{dataset: its title}; equal ones carry the beginning of their folder's state, or are the full name."""
    forms = {name: _forms(name) for name in datasets}
    taken = [form for names in forms.values() for form in dict.fromkeys(names)]
    return {name: next(form for form in names if taken.count(form) == 1) for name, names in forms.items()}


def _forms(name: str) -> tuple[str, str, str]:
    folder = FOLDER.fullmatch(name)
    state = f" #{folder['state'][:6]}{folder['skipping'] or ''}" if folder else ""
    return title(name), f"{title(name)}{state}", name


def is_named(name: str, dataset: str) -> bool:
    """Whether a user may call a dataset so: by its title, alone or with the folder's state, or by its full name."""
    return name in _forms(dataset)


def matching(name: str, datasets: Iterable[str], folder: Path) -> set[str]:
    """The datasets of a folder of runs that a user may call so."""
    known = set(datasets)
    result = {dataset for dataset in known if is_named(name, dataset)}
    if not result:
        raise unknown(f"dataset in {folder}", name, titles(known).values())
    return result
