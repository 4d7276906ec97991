"""`soup`, `ensemble`, `interpolate` and `predict --adapt` on the command line: what they print, and bad input."""

import shutil
from pathlib import Path

import pytest

import domainwise as dw
from commands import Command, standard_json
from domainwise.protocol.run_folder import RunFolder
from small_datasets import make_folder
from small_sweeps import plan_soup, soup_sweep, train_all


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two draws, two domains left out in turn."""
    return soup_sweep(tmp_path_factory.mktemp("soups"), draws=2, test_domains=["clinic", "lab"])


def run_of(sweep: Path, unseen: str, draw: int = 0) -> Path:
    found = [RunFolder.at(file.parent) for file in sorted(sweep.glob("*/run.json"))]
    trained = [one for one in found if not one.run.combination]
    return next(one.path for one in trained if one.run.test_domains == (unseen,) and one.run.draw == draw)


def test_every_test_domain_of_a_sweep_gets_its_soup(domainwise: Command, sweep: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "sweep")
    result = domainwise("soup", copy, "--device", "cpu")
    assert "weights of a run: selected step" in " ".join(result.out.split())
    assert result.status == 0 and "uniform soup: accuracy" in result.out and "2 of 2" in result.out
    assert f"domainwise table {copy}" in result.out
    shown = domainwise("table", copy, "--format", "csv")
    assert "ERM (mild) soup (uniform of 2),clinic" in shown.out and "ERM (mild) soup (uniform of 2),lab" in shown.out
    found = standard_json(domainwise("ensemble", copy, "--device", "cpu", "--json").out)
    assert [one["unseen"] for one in found["combinations"]] == ["clinic", "lab"] and found["model"] is None
    assert all(len(one["used"]) == 2 and 0 <= one["accuracy"] <= 1 for one in found["combinations"])
    assert all("weights of " in words for one in found["combinations"] for words in one["weights"])


def test_a_model_of_one_test_domain(domainwise: Command, sweep: Path, tmp_path: Path) -> None:
    copy, model = shutil.copytree(sweep, tmp_path / "sweep"), tmp_path / "model"
    arguments = (copy, "--test-domain", "lab", "--device", "cpu", "--out", model)
    result = domainwise("soup", *arguments, "--greedy")
    assert result.status == 0 and f"Model: {model}; greedy soup: mean weights of" in result.out
    photos = make_folder(tmp_path / "photos", count=1)
    assert domainwise("predict", model, photos / "lab").out.count("\n") == 2
    warned = domainwise("predict", model, photos / "lab", "--adapt", "t3a", "--adapt-keep", "5")
    assert warned.status == 0 and warned.out.count("\n") == 2
    assert warned.err.startswith("warning: t3a adapts to the images as they come: all must be from one domain")
    judged = standard_json(domainwise("evaluate", model, "--data", photos, "--adapt", "t3a", "--json").out)
    assert judged["adapted"] == "t3a"
    refused = domainwise("predict", model, photos / "lab", "--adapt", "tent")
    assert refused.is_one_line_error and "this network has none" in refused.err
    assert domainwise("predict", model, photos / "lab", "--adapt", "t3a", "--adapt-lr", "1").is_one_line_error
    for command in (("predict", model, photos / "lab"), ("evaluate", model, "--data", photos)):
        for option, method in (("--adapt-keep", "t3a"), ("--adapt-lr", "tent")):
            ignored = domainwise(*command, option, "1")
            assert ignored.is_one_line_error and f"add --adapt {method} ({option})" in ignored.err


def test_a_line_from_start_to_end(domainwise: Command, sweep: Path, tmp_path: Path) -> None:
    run, figure = run_of(sweep, "clinic"), tmp_path / "line.png"
    result = domainwise("interpolate", run, "--alphas", "0,1", "--alpha", "0.5", "--out", "model", "--figure", figure)
    assert result.status == 0 and "Training-domain validation prefers alpha" in result.out
    assert "alpha 0.5 between the start (0) and the end" in dw.load_model("model").weights and figure.exists()
    found = standard_json(domainwise("interpolate", run, "--alphas", "0,0.5,1", "--json").out)
    assert [point["alpha"] for point in found["points"]] == [0, 0.5, 1] and found["model"] is None
    assert found["start"] == "rebuilt and verified by its first loss"


@pytest.mark.parametrize("command", ["soup", "ensemble"])
def test_bad_input_to_a_combination_is_one_line(domainwise: Command, sweep: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    clinic, lab = run_of(sweep, "clinic"), run_of(sweep, "lab")
    for arguments, message in {
        (tmp_path / "nowhere",): "is not a folder",
        (tmp_path / "empty",): "no runs there: give the folder of a sweep",
        (sweep, "--out", tmp_path / "model"): "several test domains (clinic, lab): name one (--test-domain)",
        (sweep, "--test-domain", "attic"): "no run there is with unseen domain attic",
        (sweep, "--algorithm", "DAT"): "no run there is of DAT",
        (clinic, lab, "--out", tmp_path / "model"): "differ in their test domains (clinic and lab)",
        (clinic,): "name its folder (--out)",
        (tmp_path / "empty", clinic, "--out", tmp_path / "model"): "is no run's folder",
    }.items():
        result = domainwise(command, *arguments)
        assert result.is_one_line_error and message in result.err, result.err
    assert not (tmp_path / "model").exists()


def test_a_place_where_no_model_can_be_is_one_line_before_the_work(
    domainwise: Command, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("domainwise.models.combine._combine", lambda *_: pytest.fail("the work was done"))
    (tmp_path / "file").touch()
    result = domainwise("soup", sweep, "--test-domain", "lab", "--out", "file/model")
    assert result.is_one_line_error and "cannot write to file/model" in result.err and "(--out)" in result.err


def test_runs_with_their_own_starts_make_no_soup(domainwise: Command, tmp_path: Path) -> None:
    plan = plan_soup(make_folder(tmp_path / "photos"), space="domainbed", draws=2)
    sweep = train_all(plan, tmp_path / "sweep")
    result = domainwise("soup", sweep)
    assert result.is_one_line_error and "differ in their draw, by which initial weights are drawn" in result.err
    assert all(run.id in result.err for run in plan.runs()) and "the space 'soup'" in result.err
    assert domainwise("ensemble", sweep, "--device", "cpu").status == 0


def test_bad_input_to_a_line_is_one_line(domainwise: Command, sweep: Path, tmp_path: Path) -> None:
    run = run_of(sweep, "clinic")
    for arguments, message in {
        (tmp_path,): "neither a run nor a model",
        (run, "--alphas", "0,x"): "give numbers from 0 to 1",
        (run, "--alphas", "0,2"): "alpha 2 is not between 0 (the start) and 1 (the end) (--alphas)",
        (run, "--alpha", "0.5"): "name its folder, too (--out)",
        (run, "--figure", "line.txt"): "a picture's name ends in .png, .pdf or .svg (--figure)",
        (run, "--save", "averaged"): "has no averaged weights",
    }.items():
        result = domainwise("interpolate", *arguments)
        assert result.is_one_line_error and message in result.err, result.err
