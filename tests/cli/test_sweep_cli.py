"""The commands around sweeps, from end to end on tiny data, and the README's own code."""

import json
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from commands import Command
from domainwise.protocol.options import TrainingOptions
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps import launch
from domainwise.sweeps.events import Event
from domainwise.sweeps.plan import plan_sweep, planned_runs, saved_plans
from domainwise.sweeps.presets import PRESETS
from small_datasets import write_mnist

SMALL = ("--steps", "4", "--evaluate-every", "2", "--hparam", "batch_size=4")
SWEEP = ("sweep", "--dataset", "BackgroundDigits", "--algorithms", "ERM,DAT", "--hparams", "1", "--trials", "1", *SMALL)


@pytest.fixture
def domainwise(domainwise: Command, quick_workers: None) -> Command:
    return domainwise


@pytest.fixture
def tiny_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty images in MNIST's own four files."""
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "data"))
    return write_mnist(tmp_path / "data", train=40, test=20).parent


def test_a_sweep_from_plan_to_table(domainwise: Command, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    status, text, _ = domainwise(*SWEEP, "--out", out, "--dry-run", "--json")
    assert status == 0 and json.loads(text)["runs"] == json.loads(text)["missing"] == 8
    assert not out.exists(), "a dry run leaves nothing"
    status, text, err = domainwise(*SWEEP, "--out", out, "--json")
    assert status == 0, err
    assert json.loads(text)["standing"]["done"] == 8
    assert [row["method"] for row in json.loads(text)["tables"][0]["rows"]] == ["ERM", "DAT"]
    before = {path: path.read_bytes() for path in out.glob("*/records.jsonl")}
    assert domainwise(*SWEEP, "--out", out)[0] == 0
    assert before == {path: path.read_bytes() for path in out.glob("*/records.jsonl")}, "nothing was left to do"
    assert json.loads(domainwise(*SWEEP, "--out", out, "--dry-run", "--json")[1])["missing"] == 0
    assert "8 runs: 8 done, 0 running, 0 failed, 0 remaining" in domainwise("status", out)[1]
    status, text, _ = domainwise("table", out, "--selection", "all")
    text = " ".join(text.split())
    assert status == 0 and "training-domain validation" in text and "oracle validation" in text


def test_a_grid_has_a_row_for_every_combination(domainwise: Command, tmp_path: Path) -> None:
    grid = ("--grid", "eps=1,2", "--grid", "norm=l2,linf", "--algorithms", "DAT", "--test-domains", "scene1")
    status, text, err = domainwise(*SWEEP, *grid, "--track", "penalties", "--out", tmp_path, "--json")
    assert status == 0, err
    rows = [row["method"] for row in json.loads(text)["tables"][0]["rows"]]
    assert rows == [f"DAT (eps {eps}, norm {norm})" for eps in (1, 2) for norm in ("l2", "linf")]
    runs = planned_runs(list(saved_plans(tmp_path)))
    assert {(run.hparams["eps"], run.hparams["norm"]) for run in runs} == {
        (eps, norm) for eps in (1, 2) for norm in ("l2", "linf")
    }
    assert all(RunFolder(tmp_path, run).read_penalties() for run in runs)


@pytest.mark.parametrize("grid", ["eps", "eps=", "=1", "nothing=1,2"])
def test_grids_that_mean_nothing(domainwise: Command, tmp_path: Path, grid: str) -> None:
    status, text, err = domainwise(*SWEEP, "--grid", grid, "--out", tmp_path / "none", "--dry-run")
    assert status == 2 and not text and err.startswith("error: ") and err.count("\n") == 1


def test_failures_are_listed_with_reason_and_tried_again_when_asked(domainwise: Command, tmp_path: Path) -> None:

    options = TrainingOptions(steps=4, evaluate_every=2, hparams={"batch_size": 4})
    plan = plan_sweep("BackgroundDigits", ("ERM",), options, draws=1, trials=1, test_domains=("0",))
    (run,) = plan.runs()
    folder = RunFolder(tmp_path, run)
    folder.create()
    folder.append([Status(run.id, 0, "failed", "the roof fell in")])
    command = ("sweep", "--dataset", "BackgroundDigits", "--algorithms", "ERM", "--hparams", 1, "--trials", 1, *SMALL)
    command = (*command, "--test-domains", "0", "--out", tmp_path)
    status, _, err = domainwise(*command)
    assert status == 1 and "the roof fell in" in err and "--retry" in err
    assert [one.id for one in planned_runs(list(saved_plans(tmp_path)))] == [run.id]
    status, text, _ = domainwise("status", tmp_path)
    assert "1 failed" in text
    (folder.path / "run.json").write_text("{")
    assert domainwise(*command, "--retry")[0] == 0
    assert folder.status() is not None and folder.status().status == "done"
    assert RunFolder.at(folder.path).run == run, "what does not describe the run is written again"


def test_a_preset_trains_what_is_here_until_its_time_is_up(
    domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "domainbed", ("BackgroundDigits", "PACS"))
    study = ("sweep", "--preset", "domainbed", "--algorithms", "ERM", "--hparams", "1", "--trials", "1", "--steps", "3")
    study = (*study, "--hparam", "batch_size=4", "--device", "cpu", "--workers", "1", "--out", tmp_path / "runs")
    estimated = domainwise(*study, "--data-root", tmp_path, "--dry-run")
    words = " ".join(estimated.out.split())
    assert "4 runs, 4 still to do: about" in words and "of each algorithm, or of ERM times the passes" in words
    assert "left out: PACS: PACS not found" in " ".join(estimated.err.split())
    limits = []

    def until_one_event(events: Generator[Event], seconds: float) -> Generator[Event]:
        limits.append(seconds)
        with closing(events):
            yield next(events)

    monkeypatch.setattr(launch, "until", until_one_event)
    stopped = domainwise(*study, "--data-root", tmp_path, "--time-limit", "2h")
    assert limits == [7200.0]
    assert stopped.status == 0 and "the same command continues" in " ".join(stopped.err.split())
    told = domainwise(*study, "--data-root", tmp_path, "--json")
    assert told.status == 0 and json.loads(told.out)["standing"]["done"] == 4
    assert domainwise(*study, "--dataset", "PACS").is_one_line_error
    assert domainwise(*study, "--time-limit", "soon").is_one_line_error


def test_pairs_name_the_methods_that_cannot_use_them(domainwise: Command) -> None:
    sweep = ("sweep", "--dataset", "ColoredMNIST-embedded", "--hparams", "1", "--pairs", "--dry-run", "--json")
    told = domainwise(*sweep, "--algorithms", "ERM,VREx")
    assert told.status == 0 and "VREx needs more training domains than a pair leaves" in " ".join(told.err.split())
    assert json.loads(told.out)["runs"] == (3 + 3 + 3) * 3


def test_single_source_and_pairs(domainwise: Command, tmp_path: Path) -> None:
    single = ("--setting", "single", "--algorithms", "ERM")
    status, text, _ = domainwise(*SWEEP, *single, "--out", tmp_path / "single", "--json")
    columns = json.loads(text)["tables"][0]["columns"]
    assert status == 0 and len(columns) == 12 and columns[0] == "scene1 → scene2"
    pairs = ("--pairs", "--algorithms", "ERM", "--test-domains", "scene1")
    assert domainwise(*SWEEP, *pairs, "--out", tmp_path / "pairs")[0] == 0
    status, text, _ = domainwise("table", tmp_path / "pairs", "--selection", "leave-one-domain-out", "--json")
    assert status == 0 and json.loads(text)["tables"][0]["columns"] == ["scene1"]


def test_a_table_of_the_paper_is_run_and_set_beside_it(domainwise: Command, tiny_mnist: Path, tmp_path: Path) -> None:
    shrunk = ("--algorithms", "ERM,DAT", "--hparams", 1, "--trials", 1, "--steps", 2, "--network", "mlp")
    status, text, err = domainwise("reproduce", "cmnist", *shrunk, "--out", tmp_path / "out", "--json")
    assert status == 0, err
    values = json.loads(text)
    fewer = ["1 of 20 draws", "1 of 3 trials", "2 of 5001 steps", "2 of 10001 steps"]
    assert values["differences"] == [*fewer, "mlp for mnist-cnn"]
    by_method = {cell["paper"]["algorithm"]: cell["mean"] for cell in values["cells"]}
    assert by_method["DAT"] is not None and by_method["ERM"] is not None and by_method["UAT"] is None
    status, text, _ = domainwise("table", tmp_path / "out", "--paper", "table9")
    assert "not run" in text and "1 x 1 x 2" in text and "78.5 ± 4.8" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("sweep", "--dataset", "Bakground"), "did you mean 'BackgroundDigits'"),
        ((*SWEEP, "--algorithms", "ERN"), "did you mean 'ERM'"),
        ((*SWEEP, "--setting", "mult"), "did you mean 'multi'"),
        ((*SWEEP, "--space", "papers"), "did you mean 'paper'"),
        ((*SWEEP, "--on", "moon"), "unknown place to run 'moon'"),
        ((*SWEEP, "--dry-run", "--on", "moon"), "unknown place to run 'moon'"),
        ((*SWEEP, "--hparams", "0"), "draws must be at least 1, not 0 (--hparams)"),
        ((*SWEEP, "--test-domains", "scene9"), "did you mean 'scene"),
        ((*SWEEP, "--slurm", "partition"), "--slurm 'partition': write NAME=VALUE"),
        (("reproduce", "table77"), "unknown table of the paper"),
        (("reproduce", "cmnist", "--algorithms", "IRM"), "unknown algorithm of table cmnist 'IRM'"),
        (("status", "nowhere"), "nowhere is not a folder"),
        (("table", "nowhere"), "nowhere is not a folder"),
        (("export-domainbed", "nowhere", "there"), "nowhere"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_mistakes_are_one_line(
    domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = domainwise(*arguments)
    assert status == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1, err
    assert complaint in err
    assert not list(tmp_path.iterdir()), "nothing half-written"
