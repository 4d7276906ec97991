"""The benchmark of the server, shortened: many clients, a killed server, a stopped server; and memory that stays."""

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from served import small_model


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    file = Path(__file__).parents[2] / "benchmarks" / "serving.py"
    specification = importlib.util.spec_from_file_location("serving_benchmark", file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_clients_get_answers_or_503_and_a_killed_server_comes_back(benchmark: ModuleType, tmp_path: Path) -> None:
    model = small_model().save(tmp_path / "model")
    found = asyncio.run(benchmark.measure(model, 60, 10.0, "--queue", "40"))
    for phase in benchmark.PHASES:
        assert found[phase]["errors"] == {}
        statuses = {int(name.split()[1]) for name in found[phase]["answers"]}
        assert statuses <= {200, 400, 415, 503}
    load = found["load"]
    assert load["answers"]["image 200"] > 60 and load["images_per_second"] > 0
    assert any(name.endswith("503") for name in load["answers"]), "60 clients and a queue of 40"
    assert load["memory_megabytes"]["last quarter"] < 1.2 * load["memory_megabytes"]["second quarter"]
    assert found["stopped"]["exit_status"] == 0
