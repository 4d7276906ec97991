"""Trackers hear of every evaluation, and cannot harm a training; the log file tells what went on."""

import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import domainwise as dw
from domainwise.cli import main
from domainwise.core import logs
from domainwise.engine import trackers
from domainwise.engine.session import Session
from domainwise.engine.trackers import TRACKERS
from domainwise.engine.train import Interrupted
from domainwise.protocol.records import Record
from domainwise.sweeps.events import Settings
from domainwise.sweeps.local import execute
from processes import quick_context

original = Session.step


@pytest.fixture
def run() -> dw.Run:
    return dw.plan("BackgroundDigits", "ERM", ["scene1"], hparams={"batch_size": 4}, steps=5, evaluate_every=2)


class Fake:
    """What is said to a tracker."""

    heard: list[tuple[Any, ...]] = []

    def __init__(self, run: dw.Run, folder: Path) -> None:
        self.heard.append(("start", run.id, folder.name))

    def record(self, step: int, values: dict[str, float]) -> None:
        self.heard.append(("record", step, values))

    def end(self, status: Any) -> None:
        self.heard.append(("end", status and status.status))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    monkeypatch.setattr(Fake, "heard", [])
    monkeypatch.setitem(TRACKERS, "fake", Fake)
    monkeypatch.setitem(sys.modules, "fake", SimpleNamespace())
    return Fake.heard


def test_a_tracker_hears_what_the_records_say(run: dw.Run, heard: list[tuple[Any, ...]], tmp_path: Path) -> None:
    outcome = dw.train(run, tmp_path, device="cpu", log_to=["fake"])
    assert heard[0] == ("start", run.id, run.id) and heard[-1] == ("end", "done")
    told = {(step, name): value for _, step, values in heard[1:-1] for name, value in values.items()}
    expected = {
        (r.step, f"{name}/{r.domain}/{r.split}"): value
        for r in outcome.records
        for name, value in r.scores._asdict().items()
        if value is not None
    }
    expected |= {(r.step, "loss/training"): r.training_loss for r in outcome.records}
    assert told == expected


def test_a_tracker_hears_of_averaged_weights_apart(run: dw.Run, heard: list[tuple[Any, ...]], tmp_path: Path) -> None:
    row = Record(run.id, 2, "scene1", "in", 0.5, 1.0, 0.1, 1.5)
    told = trackers.Trackers(["fake"], run, tmp_path)
    told.record(2, [row, replace(row, accuracy=0.6, loss=0.9, training_loss=None, average="sma")])
    last = {"accuracy/scene1/in": 0.5, "loss/scene1/in": 1.0, "loss/training": 1.5}
    assert heard[1] == ("record", 2, last | {"sma-accuracy/scene1/in": 0.6, "sma-loss/scene1/in": 0.9})


def test_a_tracker_hears_of_a_failure_and_of_a_stop(
    run: dw.Run, heard: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, told in ((ZeroDivisionError("nothing"), "failed"), (Interrupted("asked to"), None)):

        def stop(step: int, error: Exception = error) -> None:
            if step == 3:
                raise error

        with monkeypatch.context() as patch, pytest.raises(type(error)):
            patch.setattr(Session, "step", lambda self: stop(self.next_step) or original(self))
            dw.train(run, tmp_path / str(told), device="cpu", log_to=["fake"])
        assert heard[-1] == ("end", told)


@pytest.mark.parametrize("broken", ["__init__", "record", "end"])
def test_a_tracker_that_fails_is_left_alone(
    broken: str,
    run: dw.Run,
    heard: list[tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(Fake, broken, fail)
    warnings: list[str] = []
    monkeypatch.setattr(trackers.log, "warning", lambda text, *words: warnings.append(text % words))
    assert dw.train(run, tmp_path, device="cpu", log_to=["fake"]).status.status == "done"
    assert len(warnings) == 1 and "nobody there" in warnings[0]


def test_tensorboard_gets_the_curves(run: dw.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = quick_context()
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    list(execute([run], Settings(tmp_path, "cpu", log_to=("tensorboard",)), workers=1))
    events = accumulator.EventAccumulator(str(tmp_path / run.id / "tensorboard"))
    events.Reload()
    records = [r for r in dw.train(run, tmp_path, device="cpu").records if (r.domain, r.split) == ("scene1", "in")]
    curve = [(e.step, e.value) for e in events.Scalars("accuracy/scene1/in")]
    assert curve == [(r.step, pytest.approx(r.accuracy)) for r in records] and len(curve) == 3


class MLflowStub:
    """The part of MLflow's client that is used, with its rule for the names of metrics."""

    runs: dict[str, dict[str, Any]] = {}

    def get_experiment_by_name(self, name: str) -> None:
        assert name == "domainwise"

    def create_experiment(self, _: str) -> str:
        return "1"

    def search_runs(self, _: list[str], query: str, **__: int) -> list[Any]:
        return [SimpleNamespace(info=SimpleNamespace(run_id=i)) for i, r in self.runs.items() if r["tag"] in query]

    def create_run(self, _: str, tags: dict[str, str], **__: str) -> Any:
        self.runs[f"m{len(self.runs)}"] = {"tag": tags["domainwise.run"], "metrics": [], "params": {}}
        return SimpleNamespace(info=SimpleNamespace(run_id=f"m{len(self.runs) - 1}"))

    def log_param(self, run: str, name: str, value: str) -> None:
        assert name not in self.runs[run]["params"], "MLflow refuses a second value"
        self.runs[run]["params"][name] = value

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        assert not set(name) & set("+%#"), name
        self.runs[run]["metrics"].append((name, value, step))

    def set_terminated(self, run: str, status: str) -> None:
        self.runs[run]["status"] = status


def test_mlflow_has_one_run_per_identity_and_legal_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MLflowStub, "runs", {})
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=MLflowStub))
    run = dw.plan("ColoredMNIST-embedded", "ERM", ["+90%"], hparams={"batch_size": 4}, network="mlp", steps=2)
    for folder in ("first", "again"):
        dw.train(run, tmp_path / folder, device="cpu", log_to=["mlflow"])
    (only,) = MLflowStub.runs.values()
    assert only["status"] == "FINISHED" and only["params"]["algorithm"] == "ERM"
    assert ("accuracy/_90_/in", 0) in {(name, step) for name, _, step in only["metrics"]}


@pytest.mark.parametrize(
    ("name", "complaint"), [("tensorbord", "did you mean 'tensorboard'"), ("wandb", "pip install wandb")]
)
def test_an_unknown_or_missing_tracker_is_one_line(
    name: str,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(SystemExit) as stop:
        main(["train", "--log-to", name, "--steps", "2", "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert stop.value.code == 2 and complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_log_file_tells_what_went_on_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (logs.FILE, logs.VERBOSE):
        monkeypatch.setenv(name, "")
    file = tmp_path / "what went on.log"
    command = [
        "--log-file",
        str(file),
        "sweep",
        "--dataset",
        "BackgroundDigits",
        "--algorithms",
        "ERM",
        "--device",
        "cpu",
    ]
    shrunk = ["--hparams", "1", "--trials", "1", "--test-domains", "scene1", "--steps", "2", "--hparam", "batch_size=4"]
    with pytest.raises(SystemExit):
        main([*command, *shrunk, "--out", str(tmp_path / "out")])
    text = file.read_text()
    assert "from step 0 of 2 on cpu" in text and "done" in text
    monkeypatch.delenv(logs.FILE)
    logs.configure()
