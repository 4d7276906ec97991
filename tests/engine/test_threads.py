"""The number of CPU threads belongs to a run: the process that trains it does not change a bit."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from domainwise.core.errors import UserError
from domainwise.core.threads import cpu_threads
from domainwise.data.environments import Environments
from domainwise.engine import train as engine_train
from domainwise.engine.interrupt import Interruption
from domainwise.engine.train import Interrupted, training
from domainwise.protocol.runs import Run
from domainwise.sweeps import local
from domainwise.sweeps.events import Settings
from domainwise.sweeps.local import default_workers
from domainwise.sweeps.plan_run import plan_run
from short_trainings import at_step, few, interrupt, saved_results, trained


def plan(threads: int = 1) -> Run:
    """Of a batch whose sums torch divides among threads."""
    hparams = {"batch_size": 32}
    return plan_run("BackgroundDigits", "CORAL", [0], hparams=hparams, steps=4, evaluate_every=2, threads=threads)


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_are_part_of_a_runs_identity_unless_there_is_one() -> None:
    assert "threads" not in plan().describe() and plan().id == replace(plan(), threads=1).id
    assert plan(2).describe()["threads"] == 2 and plan(2).id != plan().id
    assert Run.from_description(json.loads(json.dumps(plan(2).describe()))) == plan(2)
    with pytest.raises(UserError, match="threads must be at least 1, not 0"):
        plan(0)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_threads_of_the_process_do_not_matter(tmp_path: Path, threads: int) -> None:
    run, results = plan(threads), []
    for outside in (1, 2, 4):
        torch.set_num_threads(outside)
        trained(run, tmp_path / str(outside))
        assert torch.get_num_threads() == outside, "left as it was"
        results.append(saved_results(run, tmp_path / str(outside)))
    assert results[0] == results[1] == results[2]


def test_another_number_of_threads_is_another_result(tmp_path: Path) -> None:
    """Otherwise these tests would show nothing."""
    models = []
    for run in (plan(1), plan(2)):
        trained(run, tmp_path)
        models.append(saved_results(run, tmp_path)[2])
    assert models[0] != models[1]


def test_a_run_continues_in_a_process_with_other_threads(tmp_path: Path) -> None:
    run = plan()
    trained(run, tmp_path / "at once")
    torch.set_num_threads(4)
    with pytest.raises(Interrupted):
        trained(run, tmp_path / "later", progress=at_step(1, interrupt))
    torch.set_num_threads(2)
    trained(run, tmp_path / "later")
    assert saved_results(run, tmp_path / "later") == saved_results(run, tmp_path / "at once")


def test_interleaved_runs_each_have_their_own_threads(tmp_path: Path) -> None:
    seen: dict[int, set[int]] = {}
    steps = {
        run: training(run, tmp_path, Interruption(), device="cpu", environments=few()) for run in (plan(1), plan(2))
    }
    torch.set_num_threads(3)
    watched = engine_train.Session.step
    with pytest.MonkeyPatch.context() as patch:

        def step(session: engine_train.Session) -> None:
            seen.setdefault(session.run.threads, set()).add(torch.get_num_threads())
            watched(session)

        patch.setattr(engine_train.Session, "step", step)
        while steps:
            for run in list(steps):
                if next(steps[run], None) is None:
                    del steps[run]
                assert torch.get_num_threads() == 3
    assert seen == {1: {1}, 2: {2}}


def test_a_sweep_and_a_training_leave_the_same(tmp_path: Path) -> None:
    run = plan_run("BackgroundDigits", "CORAL", [0], hparams={"batch_size": 32}, steps=3, evaluate_every=2)
    with closing(local.execute([run], Settings(tmp_path / "sweep", "cpu"), workers=1)) as events:
        assert [event.ended.status for event in events if event.ended] == ["done"]
    code = "import json, sys, torch, domainwise as dw; torch.set_num_threads(4);"
    code += "dw.train(dw.Run.from_description(json.loads(sys.argv[1])), sys.argv[2], device='cpu')"
    alone = tmp_path / "alone"
    subprocess.run([sys.executable, "-c", code, json.dumps(run.describe()), str(alone)], check=True)
    assert saved_results(run, alone) == saved_results(run, tmp_path / "sweep")


def test_vectors_are_standardised_alike_by_any_number_of_threads() -> None:
    numbers = torch.randn(200_000, 1, generator=torch.Generator().manual_seed(1))
    data = Environments.from_arrays({"a": (numbers, torch.zeros(len(numbers), dtype=torch.int64))})
    found = []
    for threads in (1, 4):
        with cpu_threads(threads):
            found.append(data.standardised(torch.arange(len(numbers))))
    assert torch.equal(found[0].mean, found[1].mean) and torch.equal(found[0].std, found[1].std)


def test_a_sweep_has_as_many_workers_as_the_cores_have_threads_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [default_workers("cpu", [plan(threads)]) for threads in (1, 3, 8, 20)] == [8, 2, 1, 1]
    assert default_workers("cpu", []) == 8


def test_idle_cores_are_mentioned_once_for_a_large_network(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_train._mention_threads.cache_clear()
    torch.set_num_threads(4)
    trained(plan(), tmp_path / "small")
    assert "threads=" not in caplog.text, "a small network gains little"
    monkeypatch.setattr(engine_train, "LARGE", 1000)
    trained(plan(4), tmp_path)
    assert "threads=" not in caplog.text, "all are used"
    for trial in (0, 1):
        trained(replace(plan(), trial=trial), tmp_path)
    assert caplog.text.count("uses 1 of 4 CPU threads; threads=4 is faster, but another run") == 1
