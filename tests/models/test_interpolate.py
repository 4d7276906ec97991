"""Between the start and the end of a training."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.data.find import find_dataset
from domainwise.engine.session import Session
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.saved_weights import saved_weights
from domainwise.reports.interpolation import interpolation_figure
from shown_progress import recorded_progress
from small_datasets import make_folder
from small_sweeps import TINY, register_tiny_norm, soup_sweep, trained_runs


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, with its run in a folder inside."""
    folder = tmp_path_factory.mktemp("line")
    options = TINY | {"hparams": {"batch_size": 4}, "test_domains": ["clinic"], "device": "cpu"}
    dw.fit(str(make_folder(folder / "photos")), "ERM", out=folder / "model", **options)
    return folder / "model"


@pytest.fixture(scope="module")
def run_folder(model_folder: Path) -> RunFolder:
    (file,) = model_folder.glob("*/run.json")
    return RunFolder.at(file.parent)


def test_the_ends_of_the_line_are_start_and_end_of_the_training(run_folder: RunFolder) -> None:
    run = run_folder.run
    found = dw.interpolate(run_folder.path, alphas=(1, 0, 0.5), device="cpu")
    assert [point.alpha for point in found.points] == [0, 0.5, 1]
    assert found.verified == "rebuilt and verified by its first loss"
    data = find_dataset(run.dataset).load(None, run.image_size)
    start = Session(run, data, torch.device("cpu")).algorithm.state_dict()
    end = saved_weights(run_folder).tensors
    for alpha, expected in ((0.0, start), (1.0, end)):
        weights = found.model(alpha, "cpu").algorithm.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in weights.items())
    middle = found.model(0.5, "cpu").algorithm.state_dict()
    for name, value in middle.items():
        torch.testing.assert_close(value, ((start[name].double() + end[name].double()) / 2).float())
    records, _ = run_folder.read()
    at_end = {(row.domain, row.split): row.accuracy for row in records if row.step == saved_weights(run_folder).step}
    assert {part: one.accuracy for part, one in found.points[-1].scores.items()} == at_end


@pytest.mark.usefixtures("nothing_stays_registered")
def test_learning_batch_norm_gets_statistics_between_the_ends_alone(tmp_path: Path) -> None:
    folder = trained_runs(soup_sweep(tmp_path, network=register_tiny_norm(), draws=1))[0]
    found = dw.interpolate(folder.path, device="cpu", alphas=(0, 0.5, 1))
    name = "network.features.1.running_var"
    start, middle, end = (found.model(alpha, "cpu").algorithm.state_dict()[name] for alpha in (0, 0.5, 1))
    assert torch.equal(start, torch.ones(3)) and torch.equal(end, saved_weights(folder).tensors[name])
    assert not torch.allclose(middle, (start + end) / 2)


def test_the_choice_looks_at_training_domains_alone_and_prefers_the_end(run_folder: RunFolder) -> None:
    found = dw.interpolate(run_folder.path, alphas=(0, 1), device="cpu")
    points = [replace(point, validation=0.5) for point in found.points]
    assert replace(found, points=tuple(points)).best is points[1]
    better = (replace(points[0], validation=0.6), points[1])
    chosen = replace(found, points=better)
    assert chosen.best is better[0] and "prefers alpha 0: 60.0 %, against 50.0 % at 1" in chosen.sentence
    assert "chosen by training-domain validation" in chosen.model(device="cpu").weights
    none = replace(found, points=tuple(replace(point, validation=None) for point in points))
    assert none.best is None and "no point is chosen" in none.sentence
    with pytest.raises(UserError, match="no samples were held out to select a point"):
        none.model()
    with pytest.raises(UserError, match=r"alpha 0.3 was not evaluated \(those were: 0, 1\)"):
        found.model(0.3)


def test_a_table_and_a_picture(run_folder: RunFolder, tmp_path: Path) -> None:
    found = dw.interpolate(run_folder.path, alphas=(0, 0.25, 1), device="cpu")
    shown = found.as_table()
    assert shown.headings == ("alpha", "lab (held out)", "street (held out)", "clinic (unseen)", "validation")
    assert [row[0] for row in shown.rows] == ["0", "0.25", "1"] and len(found.to_records()) == 3 * 4
    interpolation_figure(found).savefig(tmp_path / "line.png")
    assert (tmp_path / "line.png").stat().st_size > 1000


def test_a_model_that_knows_its_run(model_folder: Path, tmp_path: Path) -> None:
    found = dw.interpolate(model_folder, alphas=(0, 1), device="cpu")
    assert found.verified == "rebuilt and verified by its first loss"
    alone = dw.load_model(model_folder, device="cpu").save(tmp_path / "alone")
    assert dw.interpolate(alone, alphas=(0, 1), device="cpu").verified.startswith("rebuilt (its records are not here")
    assert "last step" in dw.interpolate(model_folder, alphas=(1,), save="last", device="cpu").tuning.words
    with pytest.raises(UserError, match="has its own weights alone"):
        dw.interpolate(alone, save="last")
    between = found.model(1, "cpu").save(tmp_path / "between")
    with pytest.raises(UserError, match="it has no start of its own"):
        dw.interpolate(between)


def test_a_start_that_is_not_that_of_the_training_is_noticed(run_folder: RunFolder) -> None:
    run = run_folder.run
    data = find_dataset(run.dataset).load(None, run.image_size)
    other = replace(data, images=255 - data.images)
    with pytest.raises(UserError, match="the rebuilt start is not that of the training"):
        dw.interpolate(run_folder.path, environments=other, device="cpu")


@pytest.mark.parametrize("alphas", [(), (-0.1,), (0, 1.5), (float("nan"),)])
def test_points_outside_of_the_line(run_folder: RunFolder, alphas: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=r"between 0 \(the start\) and 1 \(the end\)"):
        dw.interpolate(run_folder.path, alphas=alphas)


def test_neither_run_nor_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is neither a run nor a model"):
        dw.interpolate(tmp_path)


def test_every_point_is_progress(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = recorded_progress(monkeypatch)
    dw.interpolate(run_folder.path, alphas=(0, 0.5, 1), device="cpu")
    assert shown["points between start and end"] == [3, 3]
