"""Soups and ensembles: what they are made of, what they refuse, and how results show them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.data.find import find_dataset
from domainwise.engine.batch_norm import estimated_statistics
from domainwise.engine.session import Session, fresh_batches, stream_keys
from domainwise.engine.train import train
from domainwise.models.combinable import SHARED, START, RunsWanted, difference
from domainwise.models.combine import combine
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import saved_weights
from domainwise.protocol.selection import Method
from domainwise.reports.publish import comparable_runs, publish, unpack
from domainwise.sweeps.plan import saved_plans
from domainwise.sweeps.tables import table
from shown_progress import recorded_progress
from small_sweeps import register_tiny_norm, soup_sweep, trained_runs

IMAGES = np.random.default_rng(0).integers(0, 256, (9, 3, 16, 16), np.uint8)
ALL = RunsWanted()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return soup_sweep(tmp_path_factory.mktemp("soup"))


def weights(model: dw.Model) -> dict[str, Tensor]:
    return model.algorithm.state_dict()


def test_draws_of_the_soup_space_share_initial_weights_but_not_batches(sweep: Path) -> None:
    runs = [folder.run for folder in trained_runs(sweep)]
    data = find_dataset(runs[0].dataset).load(None, runs[0].image_size)
    sessions = [Session(run, data, torch.device("cpu")) for run in (*runs[:2], replace(runs[1], shared_start=False))]
    first, second, own = ([p.clone() for p in session.algorithm.parameters()] for session in sessions)
    assert all(map(torch.equal, first, second)) and not all(map(torch.equal, first, own))
    for session in sessions:
        session.batches.advance()
    assert not torch.equal(sessions[0].batches.current()[0], sessions[1].batches.current()[0])


def test_a_soup_of_one_run_is_that_run(sweep: Path) -> None:
    folder = trained_runs(sweep)[1]
    model = dw.soup(folder.path, device="cpu")
    expected = saved_weights(folder)
    assert all(torch.equal(value, expected.tensors[name]) for name, value in weights(model).items())
    (made,) = combine([folder.path], "uniform soup", ALL, "cpu")
    records, _ = folder.read()
    recorded = {(row.domain, row.split): row.accuracy for row in records if row.step == expected.step}
    assert made.accuracy == recorded


def test_a_uniform_soup_has_the_mean_weights_in_float64(sweep: Path) -> None:
    parts = [saved_weights(folder).tensors for folder in trained_runs(sweep)]
    for name, value in weights(dw.soup(sweep, device="cpu")).items():
        mean = torch.stack([part[name].double() for part in parts]).mean(0)
        torch.testing.assert_close(value, mean.float(), rtol=0, atol=1e-7)


def test_a_greedy_soup_is_never_below_the_best_run_on_validation(sweep: Path) -> None:
    (greedy,) = combine([sweep], "greedy soup", ALL, "cpu")
    best = max(member.validation or 0 for member in greedy.members)
    assert greedy.best.validation == best and greedy.best in greedy.used
    assert greedy.validation is not None and greedy.validation >= best
    mean = [
        torch.stack([saved_weights(RunFolder(sweep, m.run)).tensors[n].double() for m in greedy.used]).mean(0)
        for n in greedy.algorithm.state_dict()
    ]
    assert all(torch.allclose(a.double(), b) for a, b in zip(greedy.algorithm.state_dict().values(), mean, strict=True))


def test_a_greedy_soup_leaves_out_what_lowers_validation(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.7, 0.6, 0.7])
    monkeypatch.setattr("domainwise.models.combine._validation", lambda _: next(scores))
    (greedy,) = combine([sweep], "greedy soup", ALL, "cpu")
    by_validation = sorted(greedy.members, key=lambda member: -(member.validation or 0))
    assert [member.used for member in by_validation] == [True, False, True]


def test_an_ensemble_has_the_mean_probabilities(sweep: Path, tmp_path: Path) -> None:
    folders = trained_runs(sweep)
    model = dw.ensemble(sweep, out=tmp_path / "model", device="cpu")
    singles = [dw.soup(folder.path, device="cpu").predict_proba(IMAGES) for folder in folders]
    np.testing.assert_allclose(model.predict_proba(IMAGES), np.mean(singles, axis=0), atol=1e-6)
    loaded = dw.load_model(tmp_path / "model", device="cpu")
    assert loaded.predict_proba(IMAGES).tobytes() == model.predict_proba(IMAGES).tobytes()
    assert loaded.weights == "ensemble: mean probabilities of 3 runs"
    assert len(loaded.card.members) == 3 and loaded.card.members[1] == folders[1].run.hparams
    assert loaded.features(IMAGES).shape[1] == 3 * 128


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_an_ensemble_is_exported_as_one_file(sweep: Path, tmp_path: Path, suffix: str) -> None:
    """Every export is compared with its model before it is written."""
    assert dw.ensemble(sweep, device="cpu").export(tmp_path / f"model{suffix}").stat().st_size > 0


def test_the_card_of_a_soup_says_what_it_is_made_of(sweep: Path, tmp_path: Path) -> None:
    dw.soup(sweep, rule="greedy", out=tmp_path, device="cpu")
    model = dw.load_model(tmp_path, device="cpu")
    made = model.card.training["made_of"]
    assert made["combination"] == "greedy soup" and "that share their start" in model.weights
    assert {one["run"] for one in made["runs"]} == {folder.run.id for folder in trained_runs(sweep)}
    assert "clinic" in model.unseen and "selected by training-domain validation" in model.unseen
    assert model.trained_on is not None and model.reference.keys() == {"lab", "street"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"network": "mlp"}, "network (small-cnn and mlp)"),
        ({"weights": "a.pth#0123456789abcdef"}, "pre-trained weights (none and 0123456789abcdef)"),
        ({"start": "probe"}, "start (random classifier and probe)"),
        ({"seed": 1}, "seed (0 and 1)"),
        ({"trial": 1}, "trial (0 and 1)"),
        ({"test_domains": ("lab",)}, "test domains (clinic and lab)"),
        ({"dataset": "PACS"}, "dataset"),
        ({"draw": 1, "shared_start": False}, "draw, by which initial weights are drawn (0 and 1)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_runs_that_do_not_share_their_start_are_named_with_the_field(
    sweep: Path, change: dict[str, Any], field: str
) -> None:
    run = trained_runs(sweep)[0].run
    other = replace(run, **change)
    text = difference(run, other, SHARED | START)
    assert run.id in text and other.id in text and field in text


def test_draws_share_their_start_where_nothing_of_it_is_random(sweep: Path) -> None:
    run = trained_runs(sweep)[0].run
    probed = {"shared_start": False, "weights": "a.pth#0123456789abcdef"}
    pairs = [[replace(run, draw=draw, start=start, **probed) for draw in (0, 1)] for start in ("probe", "")]
    assert [bool(difference(*pair, SHARED | START)) for pair in pairs] == [False, True]


def test_a_soup_of_runs_with_other_heads_is_refused(sweep: Path, tmp_path: Path) -> None:
    run = trained_runs(sweep)[1].run
    apart = train(replace(run, shared_start=False), tmp_path, device="cpu")
    with pytest.raises(UserError, match=r"cannot be averaged: runs .* and .* differ in their draw"):
        dw.soup([sweep / trained_runs(sweep)[0].run.id, apart.folder])
    assert dw.ensemble([sweep / run.id, apart.folder], device="cpu").predict(IMAGES).shape == (9,)


def test_weights_of_other_shapes_are_refused(sweep: Path, tmp_path: Path) -> None:
    run = replace(trained_runs(sweep)[0].run, algorithm="DANN", hparams=dw.plan("PACS", "DANN", "photo").hparams)
    runs = [replace(run, draw=i, hparams=run.hparams | {"batch_size": 4, "mlp_width": 8 + i}) for i in (0, 1)]
    folders = [train(one, tmp_path, device="cpu").folder for one in runs]
    with pytest.raises(UserError, match=rf"runs {runs[0].id} and {runs[1].id} cannot be averaged: .* has other shapes"):
        dw.soup(folders, device="cpu")
    assert len(dw.ensemble(folders, device="cpu").card.members) == 2


def test_combinations_are_rows_beside_their_runs(sweep: Path, tmp_path: Path) -> None:
    for combination in ("uniform soup", "ensemble"):
        for made in combine([sweep], combination, ALL, "cpu"):  # type: ignore[arg-type]
            made.record(sweep)
    (shown,) = table(sweep)
    names = ["ERM (mild)", "ERM (mild) ensemble (of 3)", "ERM (mild) soup (uniform of 3)"]
    assert [str(row.method) for row in shown.rows] == names and {row.draws for row in shown.rows} == {3}
    assert shown.rows[2].difference is not None and shown.rows[2].difference.n == 1
    (soup,) = combine([sweep], "uniform soup", ALL, "cpu")
    cells = shown.rows[2].cells
    assert [cell.mean for cell in cells.values()] == [pytest.approx(100 * (soup.unseen or 0))]
    assert publish(sweep, tmp_path / "published").runs == 5
    assert [str(row.method) for row in table(tmp_path / "published")[0].rows] == names
    assert unpack(tmp_path / "published", tmp_path / "again") == (5, 0)
    assert [str(row.method) for row in table(tmp_path / "again")[0].rows] == names
    assert not list(combine([tmp_path / "again"], "uniform soup", ALL, "cpu")), "what is recorded stays as it is"
    for other in (lambda again: list(combine([again], "greedy soup", ALL, "cpu")), dw.soup):
        with pytest.raises(UserError, match=r"model.safetensors is missing: delete"):
            other(tmp_path / "again")
    with pytest.raises(UserError, match="which have no weights"):
        dw.soup(tmp_path / "published")
    with pytest.raises(UserError, match=r"is made of 3 runs, not trained"):
        train(soup.run, tmp_path)
    with pytest.raises(UserError, match="holds the records of ERM soup"):
        dw.soup(sweep / soup.run.id)


def test_a_combination_is_published_with_all_its_runs_or_not_at_all() -> None:
    run = dw.plan("BackgroundDigits", "ERM", "scene1")
    soups = [replace(run, combination="uniform soup", members=(run.id, *more)) for more in ((), ("f" * 16,))]
    ended = {run.id, *(soup.id for soup in soups)}
    assert comparable_runs([], [run, *soups], ended) == {run.id, soups[0].id}


def test_names_of_methods() -> None:
    assert str(Method("ERM", "mild", combined="soup (greedy of 6)")) == "ERM (mild) soup (greedy of 6)"
    run = replace(
        dw.plan("BackgroundDigits", "ERM", "scene1", average="sma"), combination="ensemble", members=("a", "b")
    )
    assert str(Method.of(run)) == "ERM + SMA ensemble (of 2)"
    assert Run.from_description(run.describe()) == run


def test_a_combination_of_averages(tmp_path: Path) -> None:
    sweep = soup_sweep(tmp_path, average="ema", draws=2)
    (made,) = combine([sweep], "uniform soup", ALL, "cpu")
    parts = [RunFolder(sweep, member.run).load_averaged()[1] for member in made.members]
    name = "network.classifier.weight"
    torch.testing.assert_close(made.algorithm.state_dict()[name], (parts[0][name] + parts[1][name]) / 2)
    made.record(sweep)
    rows = [str(row.method) for row in table(sweep)[0].rows]
    assert rows == ["ERM (mild)", "ERM (mild) + EMA", "ERM (mild) + EMA soup (uniform of 2)"]


@pytest.mark.usefixtures("nothing_stays_registered")
def test_learning_batch_norm_gets_statistics_of_the_mean_weights(tmp_path: Path) -> None:
    sweep = soup_sweep(tmp_path, network=register_tiny_norm(), draws=2)
    (made,) = combine([sweep], "uniform soup", ALL, "cpu")
    name = "network.features.1.running_var"
    parts = [saved_weights(RunFolder(sweep, member.run)).tensors[name] for member in made.members]
    found = made.algorithm.state_dict()[name].clone()
    assert not torch.allclose(found, (parts[0] + parts[1]) / 2)
    run, data = made.members[0].run, made.environments
    rows = [data.split(domain, 0, run.held_out)["in"] for domain in run.train_domains]
    made.algorithm.train()
    with estimated_statistics(made.algorithm, fresh_batches(run, data, rows, 4, stream_keys(run))):
        torch.testing.assert_close(made.algorithm.state_dict()[name], found)
    for part, folder in zip(parts, trained_runs(sweep), strict=True):
        assert torch.equal(weights(dw.soup(folder.path, device="cpu"))[name], part), "one run keeps its own"


Arrange = Callable[[Path], object]


def one_more_draw(sweep: Path) -> None:
    (plan,) = saved_plans(sweep)
    replace(plan, draws=4).save(sweep)


def remove(name: str) -> Arrange:
    return lambda sweep: [path.unlink() for path in sweep.glob(f"*/{name}")]


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (one_more_draw, r"1 run not finished \([0-9a-f]{16}\): continue the sweep first"),
        (remove("model.safetensors"), "its model.safetensors is missing"),
        (remove("*"), "no runs there: give the folder of a sweep"),
    ],
    ids=["unfinished", "no weights", "no runs"],
)
def test_sweeps_that_cannot_be_combined(tmp_path: Path, sweep: Path, arrange: Arrange, message: str) -> None:
    copy = tmp_path / "sweep"
    shutil.copytree(sweep, copy)
    arrange(copy)
    with pytest.raises(UserError, match=message):
        dw.soup(copy)


def test_nothing_held_out_leaves_nothing_to_choose_by(tmp_path: Path) -> None:
    sweep = soup_sweep(tmp_path, held_out=0.0, draws=2)
    with pytest.raises(UserError, match="no samples were held out to select runs"):
        dw.soup(sweep, rule="greedy")
    assert dw.soup(sweep, device="cpu").weights.startswith("uniform soup")
    with pytest.raises(UserError, match="unknown rule of a soup"):
        dw.soup(sweep, rule="best")


def test_what_is_wanted_of_a_sweep(sweep: Path) -> None:
    with pytest.raises(UserError, match=r"no run there is of DAT; there are ERM \(mild\)"):
        dw.soup(sweep, algorithm="DAT")
    with pytest.raises(UserError, match="are for the folder of a sweep"):
        dw.soup(trained_runs(sweep)[0].path, trial=0)
    with pytest.raises(UserError, match=r"no run there is with unseen domain attic"):
        dw.soup(sweep, test_domain="attic")
    named = dw.soup(sweep, algorithm="ERM (mild)", test_domain="clinic", trial=0, device="cpu")
    assert named.domains == ("lab", "street")


def test_every_run_is_progress(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = recorded_progress(monkeypatch)
    made = list(combine([sweep], "ensemble", ALL, "cpu"))
    runs = sum(len(one.members) for one in made)
    assert shown["ensemble: runs"] == [runs, runs]
