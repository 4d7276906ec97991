"""Trained runs back in memory, and which of a sweep's runs are looked at."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from domainwise.analysis.run_choice import RunFilter, run_folders
from domainwise.core.errors import UserError
from domainwise.data.sources.mnist import BackgroundDigits
from domainwise.engine.restore import restore
from domainwise.engine.train import train
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run

SCENES = ("scene1", "scene2")


def plan(algorithm: str, unseen: str = "scene1", trial: int = 0, draw: int = 0) -> Run:
    return plan_run(
        "BackgroundDigits", algorithm, unseen, steps=2, trial=trial, draw=draw, hparams={"batch_size": 4, "lr": 1e-3}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(plan("DAT"), tmp_path_factory.mktemp("runs"), device="cpu").folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / folder.name))


@pytest.mark.parametrize("algorithm", ["ERM", "DAT", "EnsembleUAT", "ARM", "MTL", "SagNet", "DANN"])
def test_a_restored_model_predicts_as_the_trained_one(algorithm: str, tmp_path: Path) -> None:
    data = BackgroundDigits(Path())
    keep = torch.cat([data.rows(domain)[:10] for domain in data.domains])
    few = replace(data, images=data.images[keep], labels=data.labels[keep], sizes=dict.fromkeys(data.domains, 10))
    outcome = train(plan(algorithm), tmp_path, device="cpu", environments=few)
    random_state = torch.get_rng_state()
    trained = restore(outcome.folder, environments=few)
    assert torch.equal(torch.get_rng_state(), random_state)
    x = trained.environments.normalise(trained.environments.images[:4])
    assert outcome.algorithm is not None and not trained.algorithm.training
    outcome.algorithm.eval()
    with torch.no_grad():
        for domain in (None, 1):
            assert torch.equal(trained.algorithm.predict(x, domain), outcome.algorithm.predict(x, domain))


def test_a_folder_may_have_another_name(copy: Path) -> None:
    renamed = copy.rename(copy.with_name("shipped"))
    assert restore(renamed).run == plan("DAT")
    assert run_folders([renamed]) == [renamed]


def test_domains_are_numbered_as_in_training(folder: Path) -> None:
    trained = restore(folder)
    assert [trained.domain_number(f"scene{i}") for i in (1, 2, 3, 4)] == [None, 0, 1, 2]


@pytest.mark.parametrize(
    ("status", "words"),
    [("diverged", "diverged at step 1 (too hot)"), ("failed", "failed at step 1 (too hot)"), (None, "has not ended")],
)
def test_a_run_that_did_not_end_well_has_no_model(copy: Path, status: str | None, words: str) -> None:
    ended = RunFolder.at(copy)
    ended.rewind(1)
    if status:
        ended.append([Status(copy.name, 1, status, "too hot")])  # type: ignore[arg-type]
    else:
        ended.model_file.unlink()
    with pytest.raises(UserError) as error:
        restore(copy)
    assert words in str(error.value)


def test_folders_that_are_no_runs(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(UserError, match=r"no run's folder \(no run\.json\)"):
        restore(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        run_folders([tmp_path / "nowhere"])
    description = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(description | {"format": 99}))
    with pytest.raises(UserError, match="a run of format 99"):
        restore(copy)
    (copy / "run.json").write_text('{"format": ')
    with pytest.raises(UserError, match=r"run\.json: cut short or no JSON"):
        restore(copy)


def test_damaged_and_missing_models(copy: Path) -> None:
    model = copy / "model.safetensors"
    (copy / "best.safetensors").unlink()
    model.write_bytes(model.read_bytes()[:100])
    with pytest.raises(UserError, match=r"is damaged .*: delete .*, and train"):
        restore(copy)
    model.write_bytes(safetensors.torch.save({"w": torch.zeros(1)}))
    with pytest.raises(UserError, match=r"does not fit its run .*: delete"):
        restore(copy)
    model.unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing: delete"):
        restore(copy)
    with pytest.raises(UserError, match="is missing: delete"):
        RunFolder.at(copy).load_model()


def leave(parent: Path, run: Run, accuracy: float) -> None:
    """A run's folder as a training leaves it, with this accuracy on its training domains."""
    folder = RunFolder(parent, run)
    folder.create()
    folder.append([Record(run.id, 1, domain, "out", accuracy, 1.0, 0.1) for domain in run.train_domains])
    folder.append([Record(run.id, 1, run.test_domains[0], "in", 1 - accuracy, 1.0, 0.1)])
    folder.finish(Status(run.id, 1, "done", ""), {"w": torch.zeros(1)})


def test_of_a_sweep_one_run_per_method_is_chosen_by_validation(tmp_path: Path) -> None:
    for unseen in SCENES:
        for draw, accuracy in enumerate((0.5, 0.9, 0.7)):
            leave(tmp_path, plan("ERM", unseen, trial=1, draw=draw), accuracy)
    for draw, accuracy in enumerate((0.8, 0.6)):
        leave(tmp_path, plan("DAT", "scene2", trial=1, draw=draw), accuracy)
    best = [plan("ERM", "scene2", trial=1, draw=1), plan("DAT", "scene2", trial=1, draw=0)]
    assert run_folders([tmp_path]) == [tmp_path / run.id for run in best]
    only = run_folders([tmp_path], RunFilter(unseen="scene1"))
    assert only == [tmp_path / plan("ERM", "scene1", trial=1, draw=1).id]
    with pytest.raises(UserError, match="unseen scene9"):
        run_folders([tmp_path], RunFilter(unseen="scene9"))
    with pytest.raises(UserError, match="trial 0"):
        run_folders([tmp_path], RunFilter(trial=0))
    leave(tmp_path, replace(plan("ERM"), dataset="RotatedMNIST-embedded"), 0.5)
    with pytest.raises(UserError, match="name one of them"):
        run_folders([tmp_path])
    assert run_folders([tmp_path], RunFilter(dataset="BackgroundDigits")) == [tmp_path / run.id for run in best]


def test_runs_without_models_are_not_chosen(tmp_path: Path) -> None:
    for method in ("ERM", "DAT"):
        leave(tmp_path, plan(method), 0.5)
        (tmp_path / plan(method).id / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no run there is done"):
        run_folders([tmp_path])
