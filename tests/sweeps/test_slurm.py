"""Sweeps on Slurm, through submitit: on a real one where there is one, else on commands that stand for it."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import fake_slurm
from domainwise.cli import main
from domainwise.core.errors import UserError
from domainwise.engine.train import train
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps import cluster, slurm
from domainwise.sweeps.cluster import execute_on
from domainwise.sweeps.events import Settings
from domainwise.sweeps.plan_run import plan_run
from short_trainings import saved_results

pytest.importorskip("submitit", reason="submitit is not installed: pip install 'domainwise[slurm]'")

LONG = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 4}, steps=201, evaluate_every=10)


def real_slurm() -> bool:
    return bool(shutil.which("sinfo")) and not subprocess.run(["sinfo"], capture_output=True, check=False).returncode


@pytest.fixture(params=["fake", "real"])
def some_slurm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm to submit to."""
    monkeypatch.setattr(slurm.SlurmCluster, "poll_seconds", 0.2)
    if request.param == "fake":
        monkeypatch.setenv("PATH", f"{fake_slurm.install(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    elif not real_slurm():
        pytest.skip("there is no Slurm here: sinfo does not answer")


@pytest.mark.slow
def test_a_run_cancelled_abandoned_and_stopped_goes_on_where_it_was(some_slurm: None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = RunFolder(out, LONG)
    settings = Settings(out, "cpu")

    def driver() -> slurm.SlurmCluster:
        return slurm.SlurmCluster(settings, {"timeout_min": 5})

    first = driver()
    events = execute_on(first, [LONG], settings)
    next(events)  # it runs
    (job,) = first.jobs
    subprocess.run(["scancel", job], check=True)
    event = next(event for event in events if list(first.jobs) != [job])
    assert not event.ended and folder.checkpoint_file.exists(), "cancelled: saved, noticed, submitted again"

    second = driver()  # the first is as good as dead: it does not look any more
    assert second.adopt(LONG) and list(second.jobs) == list(first.jobs), "its job is found in the queue"
    second.close()
    assert not second.jobs and folder.status() is None and folder.checkpoint_file.exists(), "stopped, but not failed"

    last = [event for event in execute_on(driver(), [LONG], settings) if event.ended]
    assert [event.ended.status for event in last] == ["done"]
    train(LONG, tmp_path / "undisturbed", device="cpu")
    assert saved_results(LONG, out) == saved_results(LONG, tmp_path / "undisturbed")


def test_the_warning_before_the_time_limit_saves_and_the_next_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(*arguments: object, progress: Callable[[int], None], **options: object) -> object:
        def step(number: int) -> None:
            progress(number)
            if number in (5, 15):
                signal.raise_signal(signal.SIGUSR2)

        return train(*arguments, progress=step, **options)

    run = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 4}, steps=21, evaluate_every=10)
    folder = RunFolder(tmp_path, run)
    monkeypatch.setattr(cluster, "train", warned)
    before = signal.getsignal(signal.SIGUSR2)
    try:
        for step in (5, 15):
            slurm.train_job(run, Settings(tmp_path, "cpu"))
            assert folder.status() is None and folder.load_checkpoint()["next_step"] == step + 1
        slurm.train_job(run, Settings(tmp_path, "cpu"))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert folder.status().status == "done"


def test_mistakes_are_one_line_each(some_slurm: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "--dataset", "BackgroundDigits", "--on", "slurm", "--out", str(tmp_path / "out")]
    for options, said in (
        (("--slurm", "slurm_partition=nowhere"), "refused.*Invalid partition"),
        (("--slurm", "no_such_parameter=1"), r"no_such_parameter.*\(--slurm\)"),
        (("--device", "gpu"), "unknown device"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*command, *options])
        *progress, error = capsys.readouterr().err.splitlines()
        assert stop.value.code == 2 and error.startswith("error: ") and len(progress) <= 1
        assert re.search(said, error), error


def test_no_slurm_and_a_silent_one_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no Slurm here"):
        slurm.execute([LONG], Settings(tmp_path))
    commands = fake_slurm.install(tmp_path)
    (commands / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2; exit 1\n")
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.defpath}")
    with pytest.raises(UserError, match=r"does not answer .*Unable to contact"):
        slurm.execute([LONG], Settings(tmp_path))


@pytest.mark.parametrize(
    ("device", "given", "asked"),
    [("cuda", {}, 1), ("cuda", {"slurm_gres": "gpu:2"}, None), ("cuda", {"gpus_per_node": 4}, 4), ("cpu", {}, None)],
)
def test_jobs_for_a_gpu_ask_for_one(
    device: str, given: dict[str, object], asked: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, object] = {}
    monkeypatch.setattr(slurm, "SlurmCluster", lambda _, parameters: wanted.update(parameters))
    slurm.execute([LONG], Settings(tmp_path, device), given)
    assert wanted.get("gpus_per_node") == asked
