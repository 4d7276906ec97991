"""A comparison within a budget: what is given up, in which order, and that the same command finds the same plan."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from commands import commands
from domainwise.core.errors import UserError
from domainwise.models import budget
from domainwise.models.budget import Budgeted, parse_budget, within_budget
from domainwise.models.compare import compare
from domainwise.protocol.runs import Run
from domainwise.sweeps.estimate import StepTimes
from domainwise.sweeps.events import Settings
from domainwise.sweeps.plan import Plan, plan_sweep
from small_datasets import make_folder

SECONDS = {"small-cnn": 0.1, "resnet18": 1000.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A machine on which a step takes a tenth of a second, but of a ResNet a quarter of an hour."""
    measured = {"times": 0}

    def estimate(_: StepTimes, runs: Sequence[Run]) -> float:
        measured["times"] += 1
        return sum(run.steps * SECONDS[run.network] for run in runs)

    monkeypatch.setattr(StepTimes, "estimate", estimate)
    return measured


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos")


def comparison(data: Path, network: str | None = None) -> Plan:
    return plan_sweep(str(data), ("ERM", "DAT"), draws=3, trials=3, search="candidates", network=network)


def fitted(plan: Plan, out: Path, hours: float, **options: object) -> Budgeted:
    return within_budget(plan, Settings(out, "cpu"), 3600 * hours, workers=1, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("hours", "left"),
    [
        (3.1, (3, 3, 2001)),
        (2.9, (2, 3, 2001)),
        (1.5, (2, 3, 1401)),
        (0.9, (1, 3, 1701)),
        (0.3, (1, 3, 501)),
        (0.2, (1, 2, 501)),
        (0.1, (1, 1, 501)),
        (0.05, (1, 1, 201)),
        (0.001, (1, 1, 201)),
    ],
)
def test_candidates_go_before_steps_and_steps_before_trials(
    hours: float, left: tuple[int, int, int], data: Path, tmp_path: Path
) -> None:
    result = fitted(comparison(data), tmp_path / "runs", hours)
    runs = result.plan.runs()
    assert (result.plan.draws, result.plan.trials, runs[0].steps) == left
    assert bool(result.reduction) == (left != (3, 3, 2001))
    seconds = sum(run.steps * 0.1 for run in runs)
    assert seconds <= 3600 * hours or left == (1, 1, 201)


def test_what_was_set_is_kept(data: Path, tmp_path: Path, clock: dict[str, int]) -> None:
    plan = comparison(data)
    result = fitted(plan, tmp_path, 0.3, keep=("candidates",))
    assert result.plan.draws == 3 and result.plan.trials == 1
    result = fitted(plan, tmp_path, 0.3, keep=("steps", "trials"))
    assert (result.plan.draws, result.plan.trials, result.plan.runs()[0].steps) == (1, 3, 2001)
    measured = clock["times"]
    result = fitted(plan, tmp_path, 0.3, keep=("steps", "trials", "candidates"))
    assert result.plan == plan and not result.reduction and clock["times"] == measured, "nothing to measure for"


@pytest.mark.usefixtures("clock")
def test_a_pre_trained_network_goes_last_and_only_if_it_was_not_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("domainwise.sweeps.plan.planned", lambda *_: "resnet18.pt#0123456789abcdef")
    plan = comparison(data, "resnet18")
    result = fitted(plan, tmp_path, 4)
    assert result.plan.options.network == "small-cnn" and result.plan.options.weights == ""
    assert (result.plan.draws, result.plan.trials, result.plan.runs()[0].steps) == (3, 3, 2001)
    assert "small-cnn instead of resnet18" in result.reduction
    kept = fitted(plan, tmp_path, 4, keep=("network",))
    assert kept.plan.runs()[0].network == "resnet18" and "the least there is" in kept.reduction


def test_the_same_request_finds_the_same_plan(
    data: Path, tmp_path: Path, clock: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = comparison(data), tmp_path / "runs"
    first = fitted(plan, out, 0.9)
    first.store(out)
    monkeypatch.setitem(SECONDS, "small-cnn", 0.02)  # on an idle machine all of it fits
    measured = clock["times"]
    assert fitted(plan, out, 0.9) == first and clock["times"] == measured
    assert fitted(plan, out, 1.0).plan == plan, "another budget is another request"
    assert fitted(plan, tmp_path / "other", 0.9).plan == plan
    (out / budget.STORED).write_text("{")
    assert fitted(plan, out, 0.9).plan == plan, "a damaged file is measured anew"


@pytest.mark.usefixtures("clock")
def test_runs_that_began_without_a_budget_go_on(data: Path, tmp_path: Path) -> None:
    plan = comparison(data)
    plan.save(tmp_path / "runs")
    assert fitted(plan, tmp_path / "runs", 0.1) == Budgeted(plan, fitted(plan, tmp_path / "runs", 0.1).requested)


@pytest.mark.usefixtures("clock")
def test_the_command_says_what_it_reduced_and_continues(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SECONDS, "small-cnn", 1.0)
    monkeypatch.setattr("domainwise.models.budget.CPU_BUDGET", "30s")
    monkeypatch.setattr("domainwise.sweeps.local.execute", lambda *_: (event for event in ()))  # interrupted at once
    words = "--algorithms ERM,CORAL --trials 1 --steps 2 --hparam batch_size=4 --workers 1 --device cpu"
    given = ("compare", "--data", data, "--network", "small-cnn", "--runs", tmp_path / "runs", *words.split())
    line = "reduced to fit 0.5 min (all would take about 36 s here): 2 candidates instead of 3; for all: --budget none"
    assert line in commands(capsys)(*given).err
    monkeypatch.setitem(SECONDS, "small-cnn", 1e-3)
    again = commands(capsys)(*given, "--dry-run", "--json")
    assert line in again.err and json.loads(again.out)["runs"] == 12
    everything = commands(capsys)(*given, "--dry-run", "--json", "--budget", "none")
    assert "reduced" not in everything.err and json.loads(everything.out)["runs"] == 18


@pytest.mark.usefixtures("clock")
def test_the_library_reduces_as_the_command_does(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Plan] = []
    monkeypatch.setattr("domainwise.models.compare.train_candidates", lambda plan, *_: trained.append(plan))
    monkeypatch.setattr("domainwise.models.compare.comparison", lambda _plan, _out, reduced, _metric: reduced)
    monkeypatch.setitem(SECONDS, "small-cnn", 1.0)
    given = {"trials": 1, "steps": 2, "network": "small-cnn", "hparams": {"batch_size": 4}, "workers": 1}
    limited, free = (
        compare(data, ("ERM", "CORAL"), out=tmp_path / "runs", device="cpu", budget=budget, **given)  # type: ignore
        for budget in ("30s", "none")
    )
    assert limited == "reduced to fit 0.5 min (all would take about 36 s here): 2 candidates instead of 3" and not free
    assert [len(plan.runs()) for plan in trained] == [12, 18]
    monkeypatch.setitem(SECONDS, "small-cnn", 1e-3)
    again = compare(data, ("ERM", "CORAL"), out=tmp_path / "runs", device="cpu", budget="30s", **given)  # type: ignore
    assert again == limited, "the choice lies with the runs before they are trained"


@pytest.mark.parametrize("text", ["", "30", "m", "0m", "-3h", "1.5h", "1e9d", "9" * 30 + "h", "soon"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="give a number and a unit"):
        parse_budget(text, "cpu")


def test_budgets() -> None:
    assert [parse_budget(text, "cpu") for text in ("90s", "45m", "8h", "2d", "auto")] == [90, 2700, 28800, 172800, 1800]
    assert parse_budget("none", "cpu") is None
