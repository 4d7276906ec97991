"""Benchmarks are run by hand, often on a machine lent for minutes: here each is at least found to load."""

import importlib.util
import json
import random
import statistics
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from documents import ROOT
from domainwise import ALGORITHMS

BENCHMARKS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


def loaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(file.parent))
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", BENCHMARKS, ids=[file.stem for file in BENCHMARKS])
def test_a_benchmark_loads_and_says_how_it_is_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(file, monkeypatch)
    assert callable(module.main) and f"python benchmarks/{file.name}" in str(module.__doc__)


def test_the_control_of_pacs_sees_nothing_outside_its_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchvision, which crops before it resizes: what lies outside does not reach the filter."""
    control = loaded(BENCHMARKS[0].parent / "pacs_control.py", monkeypatch)
    monkeypatch.setattr(control, "crop_box", lambda *_: (10, 10, 290, 290))
    pixels = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    inside = np.zeros_like(pixels)
    inside[10:290, 10:290] = pixels[10:290, 10:290]
    seen = [np.asarray(control.augmented(Image.fromarray(one), random.Random(1))) for one in (pixels, inside)]
    assert (seen[0] == seen[1]).all()


@pytest.fixture(scope="module")
def costs() -> dict[str, list[float]]:
    """{method: its step as a multiple of ERM's, on every network that it can train}."""
    cases = json.loads((ROOT / "results" / "bench" / "method-costs.json").read_text())["cases"]
    found = {name: [case["times_erm"].get(name) for case in cases] for name in ALGORITHMS}
    assert [(name, ratios.index(None)) for name, ratios in found.items() if None in ratios] == [("ARM", 0)]
    assert cases[0]["network"] == "mlp"
    return {name: [ratio for ratio in ratios if ratio is not None] for name, ratios in found.items()}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_step_is_said_to_cost_is_near_what_was_measured(name: str, costs: dict[str, list[float]]) -> None:
    """`passes` is one number for all networks; estimates of time go by it."""
    assert ALGORITHMS[name].passes == pytest.approx(statistics.median(costs[name]), rel=0.2)


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
