"""Our records as DomainBed's: the same tables, and nothing that it would misread."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domainbed import PAIRS, RULES, all_records, check, numbers, ours, write_job
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps.collection import collect
from domainwise.sweeps.domainbed import collect_domainbed, is_domainbed
from domainwise.sweeps.domainbed_export import export_domainbed
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.tables import tables


@pytest.fixture(scope="module")
def our_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    for algorithm in ("ERM", "DAT"):
        for trial in range(2):
            for draw in range(2):
                for test in [(0,), (1,), (2,), *PAIRS]:
                    plan = {"draw": draw, "trial": trial, "steps": 201}
                    ours(folder, plan_run("ColoredMNIST", algorithm, test, **plan))
    ours(folder, plan_run("ColoredMNIST", "ERM", 0, draw=3, steps=201), "diverged", (0, 100))
    ours(folder, plan_run("ColoredMNIST", "ERM", 1, draw=3, steps=201), None, (0,))
    ours(folder, plan_run("ColoredMNIST", "ERM", 2, draw=3, steps=201), None, ())
    ours(folder, plan_run("ColoredMNIST", "DAT", 2, steps=201, variant="eps 1", hparams={"eps": 1.0}))
    return folder


def test_exported_runs_give_the_same_tables(our_sweep: Path, tmp_path: Path) -> None:
    assert export_domainbed(our_sweep, tmp_path / "theirs") == 51
    assert is_domainbed(tmp_path / "theirs")
    back, own = collect_domainbed(tmp_path / "theirs"), collect(our_sweep)
    for rule in RULES:
        (theirs,), (mine,) = tables(back, rule), tables(own, rule)
        assert [theirs.columns, *(row.steps for row in theirs.rows)] == [
            mine.columns,
            *(row.steps for row in mine.rows),
        ]
        assert [(row.draws, row.trials) for row in theirs.rows] == [(row.draws, row.trials) for row in mine.rows]
        by_their_formula = [row.as_domainbed() for row in mine.rows]
        assert numbers(theirs.rows) == pytest.approx(numbers(by_their_formula), rel=0, abs=1e-9)
        assert "DomainBed's: the population deviation" in theirs.caption and "DomainBed" not in mine.caption
        check(back, all_records(tmp_path / "theirs"), rule)
    assert {str(row.method) for row in tables(back, "oracle")[0].rows} == {"ERM", "DAT", "DAT (eps 1)"}


def test_exported_records_are_what_domainbed_reads(tmp_path: Path) -> None:
    plan = {"draw": 2, "trial": 1, "seed": 5, "steps": 201, "evaluate_every": 50}
    run = ours(tmp_path / "ours", plan_run("ColoredMNIST", "DAT", [2, 0], **plan))
    export_domainbed(tmp_path / "ours", tmp_path / "theirs")
    rows = all_records(tmp_path / "theirs")
    assert [row["step"] for row in rows] == [0, 100, 200]
    assert rows[1].keys() == {
        "step", "epoch", "step_time", "mem_gb", "hparams", "args",
        "env0_out_acc", "env1_out_acc", "env2_out_acc", "env0_in_acc", "env2_in_acc",
    }  # fmt: skip
    assert rows[1]["args"] == {
        "algorithm": "DAT", "dataset": "ColoredMNIST", "test_envs": [0, 2], "hparams_seed": 2, "trial_seed": 1,
        "seed": 5, "steps": 201, "checkpoint_freq": 50, "holdout_fraction": 0.2, "task": "domain_generalization",
        "uda_holdout_fraction": 0, "data_dir": "", "output_dir": str(tmp_path / "theirs" / run.id),
    }  # fmt: skip
    assert rows[1]["hparams"] == {name: value for name, value in run.hparams.items() if value is not None}
    assert [row["step_time"] for row in rows] == pytest.approx([2.0, 0.1, 0.1])
    records = {(r.step, r.domain, r.split): r.accuracy for r in RunFolder(tmp_path / "ours", run).read()[0]}
    assert rows[1]["env1_out_acc"] == records[100, "+80%", "out"]
    assert rows[1]["env2_in_acc"] == records[100, "-90%", "in"]


def test_exported_json_is_standard(our_sweep: Path, tmp_path: Path) -> None:
    export_domainbed(our_sweep, tmp_path / "theirs")
    for path in (tmp_path / "theirs").glob("*/results.jsonl"):
        text = path.read_text()
        assert text.endswith("}\n") and "null" not in text
        for line in text.splitlines():
            json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


def test_only_finished_runs_are_done_and_nothing_else_is_left(our_sweep: Path, tmp_path: Path) -> None:
    export_domainbed(our_sweep, tmp_path / "theirs")
    statuses = collect(our_sweep).statuses
    for path in (tmp_path / "theirs").iterdir():
        finished = path.name in statuses and statuses[path.name].status == "done"
        assert {file.name for file in path.iterdir()} == ({"results.jsonl", "done"} if finished else {"results.jsonl"})
    assert "2 of 51 jobs" in collect_domainbed(tmp_path / "theirs").notes[0]


def test_a_target_that_holds_something_is_refused(our_sweep: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep me")
    for target in (full, full / "mine.txt"):
        with pytest.raises(UserError, match=r"full.*not an empty folder"):
            export_domainbed(our_sweep, target)
    assert [file.name for file in full.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert export_domainbed(our_sweep, tmp_path / "empty") == 51


def test_what_the_format_cannot_describe_is_left_out(tmp_path: Path) -> None:
    folder, all_but = tmp_path / "ours", plan_run("ColoredMNIST", "ERM", 0)
    ours(folder, plan_run("ColoredMNIST", "ERM", 0, train_domains=[1], setting="single"))
    ours(folder, plan_run("ColoredMNIST", "ERM", [0, 2], setting="single"))
    ours(folder, plan_run("ColoredMNIST", "ERM", 0, train_domains=[1]))
    ours(
        folder, replace(all_but, validation_domains=all_but.train_domains[:1], train_domains=all_but.train_domains[1:])
    )
    ours(folder, replace(all_but, held_out=0.0))
    with pytest.raises(UserError, match="nothing to export"):
        export_domainbed(folder, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
    ours(folder, all_but)
    assert export_domainbed(folder, tmp_path / "theirs") == 1


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 301}, {"network": "small-cnn"}, {"steps": 301, "draw": 1}])
def test_searches_that_domainbed_would_mix_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    plan: dict[str, Any] = {"steps": 201}
    ours(tmp_path / "ours", plan_run("ColoredMNIST", "ERM", 0, **plan))
    ours(tmp_path / "ours", plan_run("ColoredMNIST", "ERM", 0, **plan | change))
    with pytest.raises(UserError, match="cannot distinguish run"):
        export_domainbed(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_datasets_we_do_not_know_are_exported_with_their_domains_by_name(tmp_path: Path) -> None:
    known = plan_run("ColoredMNIST", "ERM", 0, steps=201)
    names = {"+90%": "paris", "+80%": "rome", "-90%": "berlin"}
    for i in range(3):
        test = tuple(names.values())[i]
        train = tuple(name for name in names.values() if name != test)
        ours(tmp_path / "ours", replace(known, dataset="Cities", train_domains=train, test_domains=(test,)))
    assert export_domainbed(tmp_path / "ours", tmp_path / "theirs") == 3
    (theirs,) = tables(collect_domainbed(tmp_path / "theirs"), "oracle")
    (mine,) = tables(collect(tmp_path / "ours"), "oracle")
    assert tuple(map(str, mine.columns)) == ("berlin", "paris", "rome")
    assert list(theirs.rows[0].cells.values()) == [mine.rows[0].cells[name] for name in mine.columns]


ENVIRONMENTS = {
    "ColoredMNIST": "+90% +80% -90%",
    "RotatedMNIST": "0 15 30 45 60 75",
    "VLCS": "C L S V",
    "PACS": "A C P S",
    "OfficeHome": "A C P R",
    "TerraIncognita": "L100 L38 L43 L46",
    "DomainNet": "clip info paint quick real sketch",
    "SVIRO": "aclass escape hilux i3 lexus tesla tiguan tucson x5 zoe",
    "Camelyon17": "hospital_0 hospital_1 hospital_2 hospital_3 hospital_4",
    **{name: "Test SC_group_1 SC_group_2" for name in DATASETS if name.startswith("Spawrious")},
}
"""The environments of DomainBed's datasets in the order of their numbers, by the names in its code."""


@pytest.mark.parametrize("dataset", ENVIRONMENTS)
def test_domains_have_domainbeds_numbers(dataset: str, tmp_path: Path) -> None:
    data, names = DATASETS[dataset], ENVIRONMENTS[dataset].split()
    for number, (domain, name) in enumerate(zip(data.domains, names, strict=True)):
        assert domain.lower().startswith(name.lower())
        if domain in data.testable:
            ours(tmp_path / "ours", plan_run(dataset, "ERM", domain, steps=201, weights="", network="resnet18-scratch"))
            export_domainbed(tmp_path / "ours", tmp_path / f"theirs {number}")
            assert {number} in [set(row["args"]["test_envs"]) for row in all_records(tmp_path / f"theirs {number}")]
            back = collect_domainbed(tmp_path / f"theirs {number}")
            assert {(run.dataset, run.test_domains) for run in back.runs} >= {(dataset, (domain,))}


def test_wilds_datasets_have_domainbeds_names(tmp_path: Path) -> None:
    """Its collection shows the datasets that it knows alone; the numbers of FMoW's regions depend on the data."""
    options = {"weights": "", "network": "resnet18-scratch", "steps": 201}
    ours(tmp_path / "ours", plan_run("Camelyon17", "ERM", "hospital_2", **options))
    export_domainbed(tmp_path / "ours", tmp_path / "theirs")
    assert {row["args"]["dataset"] for row in all_records(tmp_path / "theirs")} == {"WILDSCamelyon"}
    ours(tmp_path / "ours", plan_run("FMoW", "ERM", "Asia", **options))
    with pytest.raises(UserError, match="runs on FMoW, whose domains DomainBed numbers by the order of the images"):
        export_domainbed(tmp_path / "ours", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    write_job(tmp_path / "jobs", (2,), dataset="WILDSCamelyon", envs=5)
    write_job(tmp_path / "jobs", (2,), dataset="WILDSFMoW", envs=6)
    found = {run.dataset: run.test_domains for run in collect_domainbed(tmp_path / "jobs").runs}
    assert found == {"Camelyon17": ("hospital_2",), "WILDSFMoW": ("env2",)}


def test_algorithms_of_different_steps_are_one_table(tmp_path: Path) -> None:
    ours(tmp_path / "ours", plan_run("ColoredMNIST", "UAT", 0, steps=301))
    ours(tmp_path / "ours", plan_run("ColoredMNIST", "VREx", 0, steps=201))
    assert export_domainbed(tmp_path / "ours", tmp_path / "theirs") == 2
