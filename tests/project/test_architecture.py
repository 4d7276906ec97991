"""The page on the architecture names files that exist, and paths whose files are linked."""

import re

import pytest

from documents import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "domainwise"
MOST_FILES = {"train": 6, "table": 4}
STEP = re.compile(r"^\d\. `([^`]+)`: (.*)", re.M)


def path(name: str) -> list[tuple[str, str]]:
    """The files of a reading path in order, and what the page says of each."""
    start = PAGE.index(f"<!-- path: {name} -->")
    return STEP.findall(PAGE[start : PAGE.index("\n\n", PAGE.index("1. ", start))])


@pytest.mark.parametrize("name", MOST_FILES)
def test_each_file_of_a_path_is_linked_to_an_earlier_one_and_the_path_is_short(name: str) -> None:
    """By an import, in either direction: results are read from the bottom up."""
    files = [file for file, _ in path(name)]
    assert 2 < len(files) <= MOST_FILES[name]
    modules = [f"domainwise.{file.removesuffix('.py').replace('/', '.')}" for file in files]
    texts = [(SOURCE / file).read_text() for file in files]
    for number in range(1, len(files)):
        imported = any(f"{modules[number]} import" in text for text in texts[:number])
        imports = any(f"{module} import" in texts[number] for module in modules[:number])
        assert imported or imports, f"{files[number]} has no link to {', '.join(files[:number])}"


@pytest.mark.parametrize("name", MOST_FILES)
def test_a_file_of_a_path_defines_what_the_page_finds_there(name: str) -> None:
    named = [(file, found) for file, text in path(name) for found in re.findall(r"`(\w+)`", text)]
    assert named
    for file, found in named:
        assert re.search(rf"^ *(class|def) {found}\b", (SOURCE / file).read_text(), re.M), f"{file} has no {found}"


def test_every_file_named_exists() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE))
    assert len(named) > 12
    missing = [name for name in named if not (SOURCE / name).is_file() and not (ROOT / name).is_file()]
    assert not missing


def test_every_room_has_its_row() -> None:
    rooms = [folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").is_file()]
    assert set(re.findall(r"^\| `([a-z]+)` \|", PAGE, re.M)) == set(rooms)
