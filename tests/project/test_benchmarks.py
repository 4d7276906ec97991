"""Benchmarks are run by hand, often on a machine lent for minutes: here each is at least found to load."""

import importlib.util
from pathlib import Path

import pytest

from domainwise import ALGORITHMS

BENCHMARKS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", BENCHMARKS, ids=[file.stem for file in BENCHMARKS])
def test_a_benchmark_loads_and_says_how_it_is_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert callable(module.main) and f"python benchmarks/{file.name}" in module.__doc__


def test_every_planted_mistake_still_fits_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At least a hundred, in every method that has a formula of its own, none of them twice."""
    monkeypatch.syspath_prepend(str(BENCHMARKS[0].parent))
    planted = importlib.import_module("planted_mistakes")
    found = planted.mistakes()
    assert len(found) == len({(one.file, one.old, one.new) for one in found}) >= 100
    assert {one.method for one in found} == set(ALGORITHMS)
    (tmp_path / planted.ALGORITHMS).mkdir(parents=True)
    for mistake in found:
        mistake.undo(tmp_path)
        mistake.apply(tmp_path)
        compile((tmp_path / planted.ALGORITHMS / mistake.file).read_text(), mistake.file, "exec")
