"""The training loop: what it leaves, when it evaluates, and what does not change it."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.core.errors import UserError
from domainwise.engine.evaluation import splits_to_evaluate
from domainwise.engine.session import Session
from domainwise.engine.train import Interrupted, train
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.reading import read_curves
from short_trainings import EVERY, STEPS, at_step, few, interrupt, plan, saved_results, trained


def test_all_of_a_validation_domain_is_evaluated_and_the_others_by_their_splits() -> None:
    run = replace(plan(), train_domains=("scene2", "scene3"), validation_domains=("scene4",), held_out=0.2)
    parts = splits_to_evaluate(run, few())
    assert {part: len(rows) for part, rows in parts.items()} == {
        ("scene2", "out"): 5,
        ("scene3", "out"): 5,
        ("scene4", "in"): 25,
        ("scene1", "in"): 20,
        ("scene1", "out"): 5,
    }
    assert sorted(parts["scene4", "in"].tolist()) == few().rows("scene4").tolist()


# what a run leaves


def test_a_run_leaves_its_description_records_and_model(tmp_path: Path) -> None:
    run = plan()
    outcome = trained(run, tmp_path, checkpoint_seconds=0, save="last")
    assert outcome.folder == tmp_path / run.id
    assert {file.name for file in outcome.folder.iterdir()} == {
        "run.json",
        "records.jsonl",
        "model.safetensors",
        "best.safetensors",
    }
    assert Run.from_description(json.loads((outcome.folder / "run.json").read_text())) == run
    assert RunFolder(tmp_path, run).read() == (outcome.records, outcome.status)
    assert outcome.status == Status(run.id, STEPS - 1, "done", "")
    assert outcome.status.has_provenance and outcome.status.date and outcome.status.threads == 1
    assert outcome.algorithm is not None
    for name, tensor in RunFolder(tmp_path, run).load_model().items():
        assert torch.equal(tensor, outcome.algorithm.state_dict()[name])


@pytest.mark.parametrize(
    ("steps", "every", "expected"), [(7, 3, [0, 3, 6]), (8, 3, [0, 3, 6, 7]), (1, 5, [0]), (3, 50, [0, 2])]
)
def test_exactly_the_needed_splits_are_evaluated_at_exactly_the_right_steps(
    tmp_path: Path, steps: int, every: int, expected: list[int]
) -> None:
    run = plan_run(
        "BackgroundDigits",
        "ERM",
        ["scene3", "scene1"],
        train_domains=["scene2"],
        hparams={"batch_size": 4},
        steps=steps,
        evaluate_every=every,
    )
    seen: list[int] = []
    records = trained(run, tmp_path, progress=seen.append).records
    needed = {("scene2", "out"), ("scene3", "in"), ("scene3", "out"), ("scene1", "in"), ("scene1", "out")}
    assert seen == list(range(steps))
    assert sorted((r.step, r.domain, r.split) for r in records) == sorted(
        (s, *part) for s in expected for part in needed
    )
    assert {record.run for record in records} == {run.id}
    assert sorted(r.seconds for r in records) == [r.seconds for r in records]


def test_records_hold_accuracy_and_mean_loss_of_the_network_as_it_stands(tmp_path: Path) -> None:
    run = plan("ERM", steps=40, evaluate_every=40, lr=3e-3)
    outcome = trained(run, tmp_path, save="last")
    assert outcome.algorithm is not None
    network, data = outcome.algorithm.network.eval(), few()
    for record in outcome.records[-5:]:
        rows = data.split(record.domain, run.trial)[record.split]
        with torch.no_grad():
            logits = network(data.images[rows] / 255)
        assert record.accuracy == pytest.approx((logits.argmax(1) == data.labels[rows]).double().mean().item())
        mean_loss = torch.nn.functional.cross_entropy(logits, data.labels[rows]).item()
        assert record.loss == pytest.approx(mean_loss, rel=1e-4)


def test_records_hold_the_mean_training_loss_since_the_evaluation_before(tmp_path: Path) -> None:
    run = plan("ERM", steps=8, evaluate_every=3)
    session = Session(run, few(), torch.device("cpu"))
    sums = [0.0]
    for _ in range(run.steps):
        session.step()
        sums.append(session.loss_sum.item())
    means = {0: sums[1], 3: (sums[4] - sums[1]) / 3, 6: (sums[7] - sums[4]) / 3, 7: sums[8] - sums[7]}
    trained(run, tmp_path)
    (curve,) = read_curves(RunFolder(tmp_path, run))
    assert curve.training_loss == pytest.approx([means[step] for step in curve.steps], rel=1e-5)
    assert curve.training_loss is not None and curve.until(3).training_loss == pytest.approx(curve.training_loss[:2])


def test_training_learns(tmp_path: Path) -> None:
    run = plan("ERM", steps=60, evaluate_every=60, batch_size=32, lr=3e-3)
    records = train(run, tmp_path, device="cpu").records
    first, last = ([r for r in records if r.split == "out" and r.step == step] for step in (0, 59))
    assert min(r.accuracy for r in last if r.domain != "scene1") > 0.5 > max(r.accuracy for r in first)


def test_calling_again_returns_the_same_without_training(tmp_path: Path) -> None:
    run, seen = plan(), []
    first = trained(run, tmp_path)
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in first.folder.iterdir()}
    again = trained(run, tmp_path, progress=seen.append)
    assert (again.records, again.status, again.folder) == (first.records, first.status, first.folder)
    assert not seen and again.algorithm is None
    assert before == {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in first.folder.iterdir()}


def test_a_failed_run_is_trained_again(tmp_path: Path) -> None:
    run = plan()
    RunFolder(tmp_path, run).create()
    RunFolder(tmp_path, run).append([Status(run.id, 0, "failed", "out of memory")])
    assert trained(run, tmp_path).status.status == "done"
    assert b"failed" not in RunFolder(tmp_path, run).records_file.read_bytes()


@pytest.mark.parametrize("algorithm", ["ERM", "DAT"])
def test_a_diverged_run_says_so(tmp_path: Path, algorithm: str) -> None:
    run = plan(algorithm, lr=1e30)
    outcome = trained(run, tmp_path)
    assert outcome.status.status == "diverged" and outcome.status.step <= EVERY
    assert "not finite" in outcome.status.reason and str(outcome.status.step) in outcome.status.reason
    assert RunFolder(tmp_path, run).read()[1] == outcome.status
    assert all(record.step < outcome.status.step for record in outcome.records)
    assert trained(run, tmp_path, progress=lambda _: pytest.fail("trained again")).status == outcome.status


def test_a_run_that_diverges_in_its_last_step_says_so(tmp_path: Path) -> None:
    """Its training losses were finite, its weights are not."""
    assert trained(plan("ERM", steps=1, lr=1e38), tmp_path).status.status == "diverged"


def test_every_line_of_a_diverged_run_is_standard_json(tmp_path: Path) -> None:
    outcome = trained(plan("ERM", lr=1e30), tmp_path)

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    for line in (outcome.folder / "records.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


# nothing else changes


def test_training_leaves_torchs_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trained(plan(dropout=0.5), tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(Interrupted):
        trained(plan(dropout=0.4), tmp_path, progress=at_step(2, interrupt))
    assert torch.equal(before, torch.get_rng_state())


def test_a_damaged_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    run = plan("DAT", steps=4, evaluate_every=2)
    folder = RunFolder(tmp_path, run)
    folder.create()
    folder.checkpoint_file.write_bytes(b"cut short")
    whole = trained(run, tmp_path / "whole")
    assert [replace(r, seconds=0) for r in trained(run, tmp_path).records] == [
        replace(r, seconds=0) for r in whole.records
    ]


def test_torchs_random_state_does_not_matter(tmp_path: Path) -> None:
    run = plan(dropout=0.5)
    for place in ("a", "b"):
        torch.rand(random.randrange(1, 100))
        trained(run, tmp_path / place)
    assert saved_results(run, tmp_path / "a") == saved_results(run, tmp_path / "b")


@pytest.mark.parametrize("algorithm", ["ERM", "AT", "DAT"])
def test_evaluation_does_not_change_the_training(tmp_path: Path, algorithm: str) -> None:
    often, seldom = (plan(algorithm, steps=6, evaluate_every=every, dropout=0.5) for every in (1, 1000))
    a, b = trained(often, tmp_path), trained(seldom, tmp_path)
    last = [[replace(r, run="", seconds=0, training_loss=None) for r in outcome.records[-5:]] for outcome in (a, b)]
    assert last[0] == last[1]
    assert a.algorithm is not None and a.algorithm.training, "dropout goes on after an evaluation"
    assert RunFolder(tmp_path, often).model_file.read_bytes() == RunFolder(tmp_path, seldom).model_file.read_bytes()


def test_checkpoints_do_not_change_the_training(tmp_path: Path) -> None:
    run = plan(dropout=0.5)
    for seconds in (0, 1000):
        trained(run, tmp_path / str(seconds), checkpoint_seconds=seconds)
    assert saved_results(run, tmp_path / "0") == saved_results(run, tmp_path / "1000")


def test_checkpoints_are_saved_between_evaluations_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, saved = plan(evaluate_every=1000), []
    monkeypatch.setattr(RunFolder, "save_checkpoint", lambda _, state: saved.append(state["next_step"]))
    trained(run, tmp_path, checkpoint_seconds=0)
    assert saved == list(range(1, STEPS + 1))


def test_a_checkpoint_of_another_kind_of_device_is_refused(tmp_path: Path) -> None:
    run = plan()
    with pytest.raises(Interrupted):
        trained(run, tmp_path, progress=at_step(3, interrupt))
    folder = RunFolder(tmp_path, run)
    state = folder.load_checkpoint()
    assert state is not None
    folder.save_checkpoint(state | {"cuda": torch.zeros(16, dtype=torch.uint8)})
    with pytest.raises(UserError, match=r"made on cuda, this is cpu; continue on cuda, or delete"):
        trained(run, tmp_path)


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 20000, -1])
def test_a_checkpoint_cut_short_is_none(tmp_path: Path, size: int) -> None:
    folder = RunFolder(tmp_path, plan())
    folder.create()
    folder.save_checkpoint({"weights": torch.rand(20, 500), "step": 3})
    assert folder.load_checkpoint() is not None
    data = folder.checkpoint_file.read_bytes()
    folder.checkpoint_file.write_bytes(data[:size])
    assert folder.load_checkpoint() is None


def test_no_damage_to_the_directory_of_a_checkpoint_is_a_traceback(tmp_path: Path) -> None:
    """Which is at its end, as in every archive."""
    folder = RunFolder(tmp_path, plan())
    folder.create()
    folder.save_checkpoint({"weights": torch.rand(20, 500), "step": 3})
    data = folder.checkpoint_file.read_bytes()
    for at in range(1, 300):
        folder.checkpoint_file.write_bytes(data[:-at] + bytes([data[-at] ^ 0xFF]) + data[len(data) - at + 1 :])
        folder.load_checkpoint()


def test_algorithms_of_one_trial_start_alike_and_see_the_same_batches(tmp_path: Path) -> None:
    """With eps = 0 all are ERM, so any difference is one of weights or batches."""
    scores = [
        [(r.accuracy, r.loss) for r in trained(run, tmp_path).records]
        for run in (plan("ERM"), plan("DAT", eps=0), plan("UAT", eps=0), plan("AT", eps=0))
    ]
    assert all(other == scores[0] for other in scores[1:])


@pytest.mark.parametrize("field", ["trial", "seed", "draw"])
def test_trials_seeds_and_draws_differ(tmp_path: Path, field: str) -> None:
    run = plan("ERM", steps=1)
    other = replace(run, **{field: 1})
    models = [RunFolder(tmp_path, r).load_model() for r in (run, other) if trained(r, tmp_path)]
    assert not torch.equal(models[0]["network.classifier.weight"], models[1]["network.classifier.weight"])


# settings that cannot be


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"device": "gpu"}, "unknown device 'gpu'"),
        pytest.param(
            {"device": "cuda"},
            "no CUDA device found: use the CPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_impossible_devices_leave_nothing(tmp_path: Path, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        train(plan(), tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_found_before_any_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(UserError, match=str(file / "out")):
        trained(plan(), file / "out", progress=lambda _: pytest.fail("trained"))
    assert file.read_text() == "in the way" and list(tmp_path.iterdir()) == [file]


def test_missing_data_leaves_no_run(tmp_path: Path) -> None:
    run = plan_run("ColoredMNIST", "ERM", [0])
    with pytest.raises(UserError, match="MNIST"):
        train(run, tmp_path / "out", data_root=tmp_path)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_bf16_is_refused_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("domainwise.engine.devices._has_bf16", lambda _: False)
    with pytest.raises(UserError, match=r"bf16.*fp32"):
        trained(replace(plan(), precision="bf16"), tmp_path)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
