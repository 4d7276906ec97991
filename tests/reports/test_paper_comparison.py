"""The paper's numbers beside ours, from records made by hand, and what is said of how they differ."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands import Command, standard_json
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.paper.conditions import CLEAN
from domainwise.paper.presets import reproduction
from domainwise.paper.tables import OVER_DATASETS, SINGLE_SOURCE, TABLES, PaperTable
from domainwise.protocol.options import TrainingOptions
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.reports.paper_comparison import compare
from domainwise.sweeps.collection import collect
from domainwise.sweeps.events import Settings
from domainwise.sweeps.plan import planned_runs
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.tables import tables
from handmade_records import COLOURS, colours, write_done_run, write_sweep


def of_paper(cells: list[dict[str, Any]], **facts: object) -> list[dict[str, Any]]:
    return [cell for cell in cells if all(cell["paper"][name] == value for name, value in facts.items())]


@pytest.mark.parametrize("variant", ["", "paper"])
def test_cells_are_matched_by_dataset_algorithm_domain_and_selection(
    domainwise: Command, tmp_path: Path, variant: str
) -> None:
    write_sweep(tmp_path, variant=variant)
    write_done_run(tmp_path, plan_run("ColoredMNIST-embedded", "UAT", "+90%", steps=21, evaluate_every=20), 0.9)
    found = standard_json(domainwise("table", tmp_path, "--paper", "cmnist", "--json").out)
    assert (found["number"], found["label"], len(found["cells"])) == ("9", "cmnist", 24)
    for algorithm, mean in (("ERM", 51.0), ("DAT", 61.0)):
        cells = of_paper(found["cells"], algorithm=algorithm)
        assert {(cell["paper"]["selection"], cell["paper"]["domain"]) for cell in cells} == {
            (rule, domain) for rule in ("training-domain", "oracle") for domain in (*COLOURS, "average")
        }
        for cell in cells:
            assert (cell["mean"], cell["error"]) == (pytest.approx(mean), pytest.approx(1 / 2**0.5))
            assert [cell["ours"][name] for name in ("draws", "trials", "steps")] == [2, 2, 21]
    assert all(cell["mean"] is None and cell["ours"] is None for cell in of_paper(found["cells"], algorithm="UAT"))


def test_a_single_trial_has_no_error(domainwise: Command, tmp_path: Path) -> None:
    write_done_run(tmp_path, colours("ERM", "-90%"), 0.3)
    cells = standard_json(domainwise("table", tmp_path, "--paper", "cmnist", "--json").out)["cells"]
    assert {cell["error"] for cell in of_paper(cells, algorithm="ERM", domain="-90%")} == {None}


@pytest.mark.parametrize(("paper", "ours", "missing"), [("cmnist", 16, 8), ("table1", 2, 70)])
@pytest.mark.parametrize("form", ["terminal", "markdown", "latex"])
def test_what_was_not_run_is_marked(
    domainwise: Command, tmp_path: Path, paper: str, form: str, ours: int, missing: int
) -> None:
    result = domainwise("table", write_sweep(tmp_path / "runs"), "--paper", paper, "--format", form)
    assert result.status == 0 and result.err == ""
    lines = [
        line for line in result.out.replace(r"\pm", "±").splitlines() if "ColoredMNIST" in line or "not run" in line
    ]
    assert sum("not run" in line for line in lines) == missing
    found = [line for line in lines if "2 x 2 x 21" in line]
    assert len(found) == ours and all(re.search(r"(51|61)\.0 ± 0\.7", line) for line in found)
    (dat,) = [line for line in found if "DAT" in line and "average" in line and "oracle" in line]
    assert "68.4 ± 2.0" in dat and "-7.4" in dat


def test_cells_as_comma_separated_values(domainwise: Command, tmp_path: Path) -> None:
    result = domainwise("table", write_sweep(tmp_path / "runs"), "--paper", "cmnist", "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(result.out)))
    assert len(lines) == 24 and sum(line["our mean"] == line["steps"] == "" for line in lines) == 8
    (dat,) = [li for li in lines if (li["method"], li["domain"], li["selection"]) == ("DAT", "average", "oracle")]
    numbers = [float(dat[name]) for name in ("paper mean", "paper error", "our mean", "our error", "steps")]
    assert numbers == pytest.approx([68.4, 2.0, 61.0, 1 / 2**0.5, 21])


def test_every_cell_is_selected_by_the_rule_of_the_paper(tmp_path: Path) -> None:
    """Training domains prefer the first draw, the oracle the second."""
    for unseen in COLOURS:
        write_done_run(tmp_path, colours("DAT", unseen), 0.4, train_out=0.9)
        write_done_run(tmp_path, colours("DAT", unseen, draw=1), 0.7, unseen_out=0.9)
    found = {c.paper.selection: c.mean for c in compare("cmnist", collect(tmp_path)).cells if str(c.method) == "DAT"}
    assert found == pytest.approx({"training-domain": 40.0, "oracle": 70.0})
    cells = {str(c.method): c for c in compare("table1", collect(tmp_path)).cells if c.paper.dataset == "ColoredMNIST"}
    assert cells["DAT"].mean == pytest.approx(70.0) and cells["DAT"].effort == "2 x 1 x 21"
    assert cells["IRM"].mean is None and cells["IRM"].effort == ""


def test_methods_trained_for_different_numbers_of_steps_are_paired_in_one_table(tmp_path: Path) -> None:
    """As ERM (5,001) and DAT (10,001) on CMNIST in the paper; a method searched twice keeps its tables apart."""
    for name, steps, accuracy in (("ERM", 21, 0.5), ("DAT", 201, 0.6)):
        for unseen in COLOURS:
            write_done_run(tmp_path, colours(name, unseen, steps=steps), accuracy)
    (table,) = tables(collect(tmp_path), "oracle")
    assert [(str(row.method), row.steps) for row in table.rows] == [("ERM", 21), ("DAT", 201)]
    assert table.rows[1].difference is not None and table.rows[1].difference.mean == pytest.approx(10.0)
    assert "ERM: 21 steps" in table.caption and "DAT: 201 steps" in table.caption
    assert "compare" not in table.caption, "both have one draw"
    unequal = replace(table, rows=(table.rows[0], replace(table.rows[1], draws=7)))
    assert unequal.caption.endswith("only rows with as many compare")
    for unseen in COLOURS:
        write_done_run(tmp_path, colours("DAT", unseen, steps=21), 0.4)
    assert [[str(row.method) for row in table.rows] for table in tables(collect(tmp_path), "oracle")] == [
        ["ERM", "DAT"],
        ["DAT"],
    ]


def test_of_two_searches_the_one_with_more_steps_stands_beside_the_paper(tmp_path: Path) -> None:
    for steps, accuracy in ((21, 0.3), (201, 0.6)):
        for unseen in COLOURS:
            write_done_run(tmp_path, colours("DAT", unseen, steps=steps), accuracy)
    (cell,) = [c for c in compare("bench", collect(tmp_path)).cells if c.mean is not None]
    assert cell.ours.steps == 201 and cell.mean == pytest.approx(60.0)


SINGLE = {("+90%", "+80%"): 0.8, ("+90%", "-90%"): 0.2, ("+80%", "+90%"): 0.9, ("+80%", "-90%"): 0.3,
          ("-90%", "+90%"): 0.1, ("-90%", "+80%"): 0.4}  # fmt: skip


def test_single_source_beside_the_paper(tmp_path: Path) -> None:
    for (source, unseen), accuracy in SINGLE.items():
        write_done_run(tmp_path, colours("ERM", unseen, train_domains=[source], setting="single"), accuracy)
    cells = {(c.paper.train, c.paper.domain): c.mean for c in compare("cmnistes", collect(tmp_path)).cells}
    assert {pair: cells[pair] for pair in SINGLE} == pytest.approx({pair: 100 * v for pair, v in SINGLE.items()})
    averages = {source: cells[source, "average"] for source in COLOURS}
    assert averages == pytest.approx({"+90%": 50.0, "+80%": 60.0, "-90%": 25.0})
    (whole,) = [c for c in compare("single", collect(tmp_path)).cells if c.mean is not None]
    assert whole.mean == pytest.approx(45.0) and whole.paper.algorithm == "ERM"


@pytest.fixture
def nico(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset(
        "NICO", "A toy.", ("train1", "train2", "validation", "test"), ("animal", "vehicle"), (1, 8, 8), "small", "mlp",
        21, lambda _: pytest.fail("loaded"), validation=("validation",), unseen=("test",), held_out=0.0,
    )  # fmt: skip
    monkeypatch.setitem(DATASETS._things, "NICO", data)


@pytest.mark.parametrize(
    ("table", "expected"), [("single", {None: 65.0}), ("nicods", {"train1": 60.0, "train2": 70.0, None: 65.0})]
)
def test_nico_from_a_single_source_has_an_average_over_its_training_domains(
    nico: None, tmp_path: Path, table: str, expected: dict[str | None, float]
) -> None:
    for source, accuracy in (("train1", 0.6), ("train2", 0.7)):
        run = plan_run("NICO", "DAT", "test", train_domains=[source], setting="single", steps=21, evaluate_every=20)
        write_done_run(tmp_path, run, accuracy)
    cells = [
        c for c in compare(table, collect(tmp_path)).cells if (c.paper.dataset, c.paper.algorithm) == ("NICO", "DAT")
    ]
    assert {c.paper.train: c.mean for c in cells} == pytest.approx(expected)


def test_algorithms_searched_in_the_papers_space_are_compared_too(tmp_path: Path) -> None:
    (table,) = tables(collect(write_sweep(tmp_path, variant="paper")), "training-domain")
    assert [str(row.method) for row in table.rows] == ["ERM (paper)", "DAT (paper)"]
    assert table.rows[1].difference is not None and table.rows[1].difference.n == 6


@pytest.fixture
def reproduce(domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command on a folder where all its runs are done."""
    monkeypatch.setattr(Settings, "check", lambda *_, **__: None)
    for run in planned_runs(reproduction("cmnist", draws=1, trials=1, steps=21, algorithms=["DAT"])):
        write_done_run(tmp_path, run, 0.6)
    size = ["--hparams", "1", "--trials", "1", "--steps", "21", "--algorithms", "DAT"]
    return lambda *options: domainwise("reproduce", "cmnist", *size, "--out", tmp_path, *options)


SMALLER = ["1 of 20 draws", "1 of 3 trials", "21 of 10001 steps"]


def test_a_reproduction_says_by_how_much_it_is_smaller(reproduce: Command) -> None:
    result = reproduce()
    said = f"unlike the paper: {'; '.join(SMALLER)}"
    assert result.status == 0 and f"({said})" in result.err
    assert f"Ours, {said}." in " ".join(result.out.split()) and "1 x 1 x 21" in result.out
    dry = reproduce("--dry-run")
    assert dry.out.startswith("3 runs, 0 still to do") and f"({said})" in dry.out


def test_a_failed_run_does_not_hide_the_others(reproduce: Command, tmp_path: Path) -> None:
    failed, *others = collect(tmp_path).runs
    RunFolder(tmp_path, failed).append([Status(failed.id, 20, "failed", "the roof fell in")])
    result = reproduce("--json")
    assert result.status == 1 and "the roof fell in" in result.err
    ours = {cell["paper"]["domain"] for cell in standard_json(result.out)["cells"] if cell["mean"] is not None}
    assert {domain for run in others for domain in run.test_domains} <= ours


def test_a_reproduction_as_json_is_one_object(reproduce: Command) -> None:
    found = standard_json(reproduce("--json").out)
    assert found["differences"] == SMALLER and len(found["cells"]) == 24
    dry = standard_json(reproduce("--json", "--dry-run").out)
    assert dry["missing"] == 0 and dry["differences"] == SMALLER


def test_an_average_of_some_domains_is_not_the_papers(tmp_path: Path) -> None:
    for unseen in COLOURS[:2]:
        write_done_run(tmp_path, colours("DAT", unseen), 0.6)
    found = {c.paper.domain: c.mean for c in compare("cmnist", collect(tmp_path)).cells if str(c.method) == "DAT"}
    assert found == {"+90%": pytest.approx(60.0), "+80%": pytest.approx(60.0), "-90%": None, "average": None}


DATASETS_OF_DOMAINBED = {"ColoredMNIST": 0.5, "RotatedMNIST": 0.9, "VLCS": 0.7, "PACS": 0.8, "OfficeHome": 0.6}
LAST = ("TerraIncognita", 0.4)


def test_an_average_over_some_targets_of_a_source_is_not_the_papers(tmp_path: Path) -> None:
    """Digits without SVHN and SYN."""
    run = plan_run("Digits", "ERM", ["MNIST-M", "USPS"], train_domains=["MNIST"], steps=21, setting="single")
    write_done_run(tmp_path, run, 0.6)
    found = {
        str(row.column): row.mean for row in compare("dig", collect(tmp_path)).cells if row.paper.algorithm == "ERM"
    }
    assert found["MNIST → USPS"] == pytest.approx(60.0)
    assert found["MNIST → SVHN"] is None and found["MNIST → average"] is None


def test_the_average_over_datasets_is_there_once_all_were_run(tmp_path: Path) -> None:
    def search(name: str, accuracy: float, **smaller: Any) -> None:
        for run in planned_runs(reproduction("db", **smaller, dataset=name, algorithms=["DAT"])):
            write_done_run(tmp_path, run, accuracy)

    def over_datasets() -> Any:
        rows = compare("db", collect(tmp_path)).cells
        (row,) = [row for row in rows if row.paper.dataset == OVER_DATASETS and str(row.method) == "DAT"]
        assert all(r.mean is None for r in rows if str(r.method) != "DAT")
        return row

    for name, accuracy in DATASETS_OF_DOMAINBED.items():
        search(name, accuracy, draws=2, trials=2, steps=21)
    assert over_datasets().mean is None, "not run"
    search(*LAST, draws=1, trials=2, steps=11)
    row = over_datasets()
    assert row.mean == pytest.approx((50 + 90 + 70 + 80 + 60 + 40) / 6) and row.error is None
    assert row.effort == "1 x 2 x 11", "as much as for the least of them"
    assert row.paper.mean == 71.2


def test_what_differs_is_told_from_the_records(domainwise: Command, tmp_path: Path) -> None:
    options = TrainingOptions(steps=21, network="small-cnn", precision="bf16", image_size=64)
    for run in planned_runs(reproduction("db", options, draws=1, trials=1, dataset="PACS", algorithms=["ERM"])):
        write_done_run(tmp_path, run, 0.5)
    expected = [
        *("1 of 20 draws", "1 of 3 trials", "21 of 5001 steps", "small-cnn for resnet50"),
        *("a random start for weights resnet50-0676ba61.pth (0676ba61)", "bf16 for fp32", "64 pixels for 224 pixels"),
        CLEAN,
    ]
    assert compare("db", collect(tmp_path)).differences == expected
    assert standard_json(domainwise("table", tmp_path, "--paper", "db", "--json").out)["differences"] == expected
    for form in ("terminal", "markdown"):
        out = " ".join(domainwise("table", tmp_path, "--paper", "db", "--format", form).out.split())
        assert f"Ours, unlike the paper: {'; '.join(expected)}." in out
    (table,) = tables(collect(tmp_path), "training-domain")
    assert "small-cnn; bf16; images of 64 pixels; augmentation domainbed; 21 steps" in table.caption


def test_runs_on_images_of_different_size_stand_in_different_tables(tmp_path: Path) -> None:
    for size in (64, 96):
        for run in planned_runs(reproduction("db", draws=1, trials=1, steps=21, image_size=size, dataset="PACS")):
            if run.algorithm == "ERM":
                write_done_run(tmp_path, run, 0.5)
    assert sorted(table.image_size for table in tables(collect(tmp_path), "training-domain")) == [64, 96]


# reproductions that cannot be measured


def test_a_dry_run_says_what_data_is_missing_and_opens_nothing(
    domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr(Dataset, "load", lambda *_: pytest.fail("data was opened"))
    result = domainwise("reproduce", "bench", "--algorithms", "ERM,DAT", "--dry-run")
    assert result.status == 0 and result.out.startswith("1440 runs, 1440 still to do: time not estimated")
    for name in ("MNIST", "PACS", "NICO", "TerraIncognita"):
        assert re.search(rf"^missing: {name}.* not found: looked in ", result.out, re.MULTILINE), name
    assert re.search(r"^missing: no weights resnet18-f37072fd.pth.*weights get resnet18", result.out, re.MULTILINE)
    found = standard_json(domainwise("reproduce", "bench", "--algorithms", "ERM,DAT", "--dry-run", "--json").out)
    assert found["seconds"] is None and len(found["lacking"]) == 5


def test_a_dry_run_for_a_cluster_does_not_need_its_device(domainwise: Command, tmp_path: Path) -> None:
    small = ("--dataset", "BackgroundDigits", "--hparams", 1, "--trials", 1)
    result = domainwise("sweep", *small, "--device", "cuda", "--on", "slurm", "--dry-run")
    assert result.status == 0
    assert "time not estimated (no CUDA device" in result.out or "in all, on machines" in result.out


@pytest.mark.parametrize("table", [*TABLES, SINGLE_SOURCE], ids=lambda table: table.label)
def test_every_table_can_be_tried(
    table: PaperTable, domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path))
    found = standard_json(domainwise("reproduce", table.label, "--dry-run", "--json").out)
    assert found["runs"] == found["missing"] > 0 and found["seconds"] is None and found["lacking"]
