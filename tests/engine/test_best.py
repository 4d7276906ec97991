"""The weights of the step that training-domain validation selects: kept, exact after a resume, and used."""

import gc
import random
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.core.errors import UserError
from domainwise.engine.evaluation import evaluate, splits_to_evaluate
from domainwise.engine.recorder import Recorder
from domainwise.engine.restore import restore
from domainwise.engine.result import TrainingResult
from domainwise.engine.train import Interrupted
from domainwise.protocol.records import Record
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.saved_weights import saved_weights
from domainwise.protocol.selection import Curve, select, training_domain_score
from domainwise.sweeps.plan_run import plan_run
from short_trainings import at_step, few, interrupt, plan, trained

LONG = {"trial": 2, "steps": 30, "evaluate_every": 2, "lr": 0.003, "batch_size": 16}
"""Long enough for the accuracy on held-out images to rise and fall."""


def chosen_step(outcome: TrainingResult) -> int:
    choice = select([Curve.of(outcome.run, outcome.records)], "scene1", "training-domain")
    assert choice is not None
    return choice.step


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    made = trained(plan("ERM", **LONG), tmp_path_factory.mktemp("best"))
    assert 0 < chosen_step(made) < 29, "neither the first nor the last: these tests would show nothing"
    return made


def test_the_best_weights_are_those_of_the_step_that_the_rule_selects(outcome: TrainingResult) -> None:
    folder = RunFolder(outcome.folder.parent, outcome.run)
    best, last = saved_weights(folder), saved_weights(folder, "last")
    step = chosen_step(outcome)
    assert outcome.selected_step == best.step == step and last.step == 29
    assert str(best) == f"weights of step {step}, selected by training-domain validation"
    assert str(last) == "weights of the last step, 29"
    for weights, at in ((best, step), (last, 29)):
        model = restore(outcome.folder, environments=few(), save="best" if weights is best else "last")
        assert model.weights == str(weights)
        scores = evaluate(model.algorithm, few(), splits_to_evaluate(outcome.run, few()), outcome.run.train_domains)
        for record in outcome.evaluation(at):
            assert scores[record.domain, record.split][:2] == pytest.approx((record.accuracy, record.loss), rel=1e-5)
    assert outcome.algorithm is not None
    for name, tensor in outcome.algorithm.state_dict().items():
        assert torch.equal(tensor, best.tensors[name])
    with pytest.raises(UserError, match="unknown step to save 'first'"):
        saved_weights(folder, "first")


@pytest.mark.parametrize("at", [1, 8, 21, 28])
def test_a_resumed_training_keeps_the_same_best_weights(outcome: TrainingResult, tmp_path: Path, at: int) -> None:
    with pytest.raises(Interrupted):
        trained(outcome.run, tmp_path, progress=at_step(at, interrupt))
    again = trained(outcome.run, tmp_path)
    kept = [RunFolder(one.folder.parent, one.run).best_file.read_bytes() for one in (outcome, again)]
    assert kept[0] == kept[1]


def earlier(recorder: Recorder) -> dict[str, Any]:
    state = recorder.session.state() | {"seconds": recorder.seconds}
    del state["loss_steps"]
    return state


def test_without_held_out_samples_there_is_only_the_last_step(tmp_path: Path) -> None:
    run = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 4}, steps=4, evaluate_every=2, held_out=0)
    made = trained(run, tmp_path)
    assert {(record.domain, record.split) for record in made.records} == {("scene1", "in")}
    assert made.selected_step is None and not (made.folder / "best.safetensors").exists()
    shown = made.as_table()
    assert "no step is selected" in shown.caption and shown.headings == ("domain", "split", "last: step 3", "loss")
    assert restore(made.folder, environments=few()).weights == "weights of the last step, 3"


def test_nothing_held_out_and_nothing_unseen_is_a_training_without_evaluations(tmp_path: Path) -> None:
    made = trained(plan_run("BackgroundDigits", "ERM", [], hparams={"batch_size": 4}, steps=2, held_out=0), tmp_path)
    assert made.records == made.last_evaluation == [] and made.selected_step is None
    assert made.as_table().rows == [] and made.status.status == "done"


@pytest.mark.parametrize("held_out", [-0.1, 1, 1.5, float("nan")])
def test_a_fraction_held_out_is_from_0_to_less_than_1(held_out: float) -> None:
    with pytest.raises(UserError, match="must be at least 0 and less than 1"):
        plan_run("BackgroundDigits", "ERM", [0], held_out=held_out)


def test_the_table_shows_the_selected_and_the_last_evaluation(outcome: TrainingResult) -> None:
    shown, step = outcome.as_table(), chosen_step(outcome)
    assert shown.headings == ("domain", "split", f"selected: step {step}", "loss", "last: step 29", "loss")
    assert shown.caption == f"done after step 29; step {step} is selected by training-domain validation"
    at = {(r.domain, r.split, r.step): f"{100 * r.accuracy:.1f} %" for r in outcome.records}
    unseen = next(row for row in shown.rows if row[0] == "scene1 (unseen)" and row[1] == "in")
    assert (unseen[2], unseen[4]) == (at["scene1", "in", step], at["scene1", "in", 29])


@pytest.mark.parametrize("domains", [1, 3, 9, 17])
def test_the_score_of_an_evaluation_is_that_of_its_curve(domains: int) -> None:
    run, luck = replace(plan(), train_domains=tuple(map(str, range(domains))), test_domains=("x",)), random.Random(3)
    records = [
        Record(run.id, step, domain, split, luck.randint(80, 83) / 97, 1.0, 0.0)
        for step in range(300)
        for domain, split in [*((name, "out") for name in run.train_domains), ("x", "in")]
    ]
    choice = select([Curve.of(run, records)], "x", "training-domain")
    best = first_best(run, records)
    assert choice is not None and choice.step == best


def first_best(run: Run, records: list[Record]) -> int:
    best, at = -1.0, -1
    for step in range(300):
        score = training_domain_score(run, {(r.domain, r.split): r.accuracy for r in records if r.step == step})
        assert score is not None
        if score > best:
            best, at = score, step
    return at


def test_damaged_best_weights_are_named(outcome: TrainingResult, tmp_path: Path) -> None:
    run = plan("ERM")
    folder = RunFolder(tmp_path, run)
    trained(run, tmp_path)
    data = bytearray(folder.best_file.read_bytes())
    data[-1] ^= 1
    folder.best_file.write_bytes(data)
    with pytest.raises(UserError, match=r"best\.safetensors is damaged .*those of the last step are used"):
        saved_weights(folder)
    folder.best_file.unlink()
    assert not saved_weights(folder).selected


def test_a_training_that_has_ended_is_freed_at_once(tmp_path: Path) -> None:
    """Not when Python next looks for cycles: on a GPU its memory is needed by the next training."""
    gc.collect()
    gc.disable()
    try:
        ended = weakref.ref(trained(plan("DAT", average="sma"), tmp_path).algorithm)
        assert ended() is None
    finally:
        gc.enable()
