"""Benchmarks are run by hand, often on a machine lent for minutes: here each is at least found to load."""

import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", BENCHMARKS, ids=[file.stem for file in BENCHMARKS])
def test_a_benchmark_loads_and_says_how_it_is_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert callable(module.main) and f"python benchmarks/{file.name}" in module.__doc__
