"""Tables and sentences of the README and the guides say what benchmarks and published records say."""

import json
from pathlib import Path

import pytest

from domainwise.reports.publish import publish
from generated_docs import answer
from guide_tables import SPEEDS
from handmade_records import write_sweep


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ERM and DAT on ColoredMNIST, DAT ten points ahead on every domain, and records of benchmarks."""
    folder = tmp_path_factory.mktemp("results")
    publish(write_sweep(folder / "runs"), folder / "cmnist")
    (folder / "bench").mkdir()
    times = {"ERM": 1.02, "DAT": 2.04, "CORAL": 1.3}
    cases = [{"network": "mlp", "size": 28, "times_erm": {}}, {"network": "small-cnn", "size": 28, "times_erm": times}]
    (folder / "bench" / "costs.json").write_text(json.dumps({"cases": cases}))
    facts = {"device": "GPU", "torch": "2.11"}
    for number, name in enumerate({name for _, name, *_ in SPEEDS}):
        rows = [("plain loop", "default", "eager", 10.0), ("plain evaluation", "default", "eager", 4321.0)]
        for what, one in (("ERM", 2.0), ("evaluation", 43.21)):
            for precision in ("tf32", "bf16"):
                rows += [(what, precision, form, one * slower) for form, slower in (("compiled", 1), ("captured", 2))]
                rows.append((what, precision, "8 in turns", one / 8))
        keys = ("what", "precision", "form", "milliseconds")
        record = facts | {"date": f"2026-01-0{number + 1}", "rows": [dict(zip(keys, row, strict=True)) for row in rows]}
        (folder / "bench" / f"gpu-{name}.json").write_text(json.dumps(record))
    return folder


def test_speed_is_that_of_one_run_beside_the_loop(root: Path) -> None:
    lines = answer(root, "speed gpu").splitlines()
    assert [line.split(" | ")[2:] for line in lines[2:7]] == [["10", "2", "5 |"]] * 4 + [["4,321", "43.2", "100 |"]]
    assert lines[-1].startswith("One GPU, torch 2.11, 2026-01-01 and 2026-01-02 and 2026-01-03;")


def test_gains_and_costs(root: Path) -> None:
    """What is clear is bold; a method that was not run has no row."""
    lines = answer(root, "costs costs.json cmnist").splitlines()
    space = "\N{NO-BREAK SPACE}"
    assert lines[0] == "| method | step time / ERM's | ColoredMNIST |"
    assert lines[2].startswith("| ERM | 1 | 5") and lines[3] == f"| DAT | 2 | **+10.0{space}±{space}0.0** |"
    assert lines[4:] == [
        "",
        "Clearly ahead of ERM on ColoredMNIST: DAT.",
        "",
        "Set-up: ColoredMNIST: mnist-cnn, 21 steps, 2 trials.",
    ]


def test_a_comparison_in_words(root: Path) -> None:
    accuracies, comparison = answer(root, "sentence cmnist DAT").split(". ")
    assert accuracies == "On unseen domains DAT reaches 61.0 ± 1.0 %, ERM 51.0 ± 1.0 % (2 trials)"
    assert comparison.startswith("DAT is clearly ahead of ERM: +10.0 ± 0.0 points over 6 pairs")
    assert answer(root, "sentence cmnist IRM") == "IRM and ERM were not both run: nothing to compare."


def test_a_server_under_load(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    load = {
        "answers": {"image 200": 900, "image 503": 90, "bad 429": 10},
        "errors": {},
        "images_per_second": 33.4,
        "seconds": {"median": 0.5, "p95": 1.0, "p99": 1.234},
        "memory_megabytes": {"second quarter": 400, "last quarter": 401, "most": 420},
    }
    found = {
        "load": load,
        "killed": {"restart_seconds": 4.4, "errors": {}},
        "stopped": {"errors": {"form: status 500": 2}},
    }
    facts = {"clients": 200, "seconds": 60.0, "cores": 2, "load_average_before": [1.5, 1, 1], "torch": "2", "date": "d"}
    record = facts | {"networks": {"resnet18:224": found}}
    (tmp_path / "bench" / "s.json").write_text(json.dumps(record))
    lines = answer(tmp_path, "serving s.json").splitlines()
    assert lines[2] == "| resnet18, 224 pixels | 1,000 | 10 % | 2 | 33 | 0.50 / 1.23 | 400 / 401 | 4 |"
    assert lines[-1].startswith("200 clients for 60 s on 2 cores")


def test_calibration_on_a_domain_that_is_new_to_it(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    names = ("accuracy", "ece_before", "ece_after", "sets_90_coverage", "coverage_50_answered", "coverage_50_error")
    trials = [{name: 0.1 * number for number, name in enumerate(names)} | {"sets_90_size": size} for size in (2.0, 4.0)]
    record = {"data": "PACS", "domains": {"art": {"n": 9, "trials": trials}}}
    (tmp_path / "bench" / "c.json").write_text(json.dumps(record))
    lines = answer(tmp_path, "calibration c.json").splitlines()
    assert lines[2] == "| art | 0.0 | 10.0 | 20.0 | 30.0 | 3.0 | 40.0 / 50.0 |" and "mean of 2 trials" in lines[-1]
