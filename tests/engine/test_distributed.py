"""One model trained by several processes is the model that one process trains."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from commands import command
from domainwise.core import torchrun
from domainwise.core.errors import UserError
from domainwise.engine.execution.data_parallel import check_data_parallel, check_features
from domainwise.engine.train import train
from domainwise.nets.network import build
from domainwise.protocol.run_folder import RunFolder
from processes import listening
from ranks import BATCH, EVERY, STEPS, after_steps, algorithm, averaged, both, few, of_backbone, run
from small_problems import make

Seen = list[dict[str, Any]]
LOOPBACK = "0100007F"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def seen(out: Path) -> Seen:
    return both(out)


@pytest.mark.parametrize("name", EVERY)
def test_two_processes_train_what_one_does(seen: Seen, name: str) -> None:
    """3 x 5 samples over 2 ranks, twelve steps in float64: weights, delta, moments, losses, and random numbers."""
    alone = after_steps(algorithm(name))
    assert len(alone["losses"]) == STEPS and BATCH % 2
    for key, value in alone.items():
        first, second = (rank[name][key] for rank in seen)
        assert torch.equal(first, second), f"{key} is the same on both ranks, bit by bit"
        assert torch.allclose(first, value, rtol=0, atol=1e-8), key


def test_each_rank_computes_its_share(seen: Seen) -> None:
    assert [rank["shares"] for rank in seen] == [[7, 1, 1], [8, 1, 1]], "one sample is computed by everybody"


def test_what_ranks_send_each_other(seen: Seen) -> None:
    assert [rank["ranks"] for rank in seen] == [(0, 2, True), (1, 2, False)]
    for rank in seen:
        assert torch.equal(rank["broadcast"].flatten(), torch.arange(8.0)), "those of rank zero"
        assert rank["any"] == [True, False, True]
        assert rank["mistakes"] == ["UserError: rank 0 has no data", "UserError: rank 1 has no data", None]
    assert seen[0]["rank zero"] == ["by 0", "cannot write", "and on"]
    assert seen[1]["rank zero"] == ["by 0", "failed", "and on"]


def same(found: Any, expected: Any) -> bool:
    return all(a[0] == b[0] and a[1:] == pytest.approx(b[1:], abs=1e-5) for a, b in zip(found, expected, strict=True))


def test_a_training_leaves_what_it_leaves_alone(seen: Seen, out: Path, tmp_path: Path) -> None:
    alone = train(run(), tmp_path, device="cpu", environments=few())
    expected = [(r.step, r.accuracy, r.loss) for r in alone.records]
    for rank in seen:
        for which in ("whole", "continued", "again"):
            status, step, records = rank[which]
            assert (status, step) == ("done", 11) and same(records, expected)
    assert not (out / "nowhere").exists(), "only rank zero writes"
    folders = [RunFolder(path, run()) for path in (tmp_path, out / "out/whole", out / "out/parts")]
    for folder in folders:
        assert {file.name for file in folder.path.iterdir()} == {
            "run.json",
            "records.jsonl",
            "penalties.jsonl",
            "model.safetensors",
            "best.safetensors",
        }
        for name, tensor in folder.load_model().items():
            assert torch.allclose(tensor, folders[0].load_model()[name], atol=1e-5)
        penalties = [(p.step, p.irm, p.at, p.dat, p.ldat) for p in folder.read_penalties()]
        assert same(penalties, [(p.step, p.irm, p.at, p.dat, p.ldat) for p in folders[0].read_penalties()])
    assert folders[1].load_model().keys() == alone.algorithm.state_dict().keys()
    parts = [folder.model_file.read_bytes() + folder.best_file.read_bytes() for folder in folders[1:]]
    assert parts[0] == parts[1], "interrupted and continued: bit by bit"


def test_ranks_average_what_one_process_averages(seen: Seen, out: Path, tmp_path: Path) -> None:
    for name in ("sma", "swad"):
        alone = train(averaged(name), tmp_path, device="cpu", environments=few())
        expected = [(r.step, r.accuracy, r.loss) for r in alone.records]
        assert len(expected) == (30 if name == "sma" else 20)
        for rank in seen:
            assert rank["averaged"][name][0] == "done" and same(rank["averaged"][name][2], expected)
        (steps, found), (own, weights) = (
            RunFolder(path, averaged(name)).load_averaged() for path in (out / "out/averaged", tmp_path)
        )
        assert steps == own and all(torch.allclose(found[key], weights[key], atol=1e-5) for key in weights)


def test_ranks_train_a_backbone_as_one_process_does(seen: Seen, out: Path, tmp_path: Path) -> None:
    which = of_backbone(out)
    alone = train(which, tmp_path, device="cpu", environments=few())
    for rank in seen:
        status, step, records = rank["backbone"]
        assert (status, step) == ("done", 3) and same(records, [(r.step, r.accuracy, r.loss) for r in alone.records])
    found = RunFolder(out / "out/backbone", which).load_model()
    for name, tensor in RunFolder(tmp_path, which).load_model().items():
        if not name.endswith("k_proj.bias"):  # attention does not depend on it: Adam steps along rounding errors
            assert torch.allclose(found[name], tensor, atol=1e-5), name


def test_a_signal_to_one_rank_stops_all_after_the_same_step(seen: Seen) -> None:
    for rank in seen:
        assert rank["interrupted"] == f"Interrupted: {run()} stopped after step 6"
        assert rank["steps"] == list(range(7, 12)), (
            "then all go on from the checkpoint of rank zero, and rest when done"
        )


def test_one_process_can_continue_what_two_began(seen: Seen, out: Path) -> None:
    steps: list[int] = []
    train(run(), out / "out/handed", device="cpu", environments=few(), progress=steps.append)
    assert steps == seen[0]["steps"]
    models = [RunFolder(out / "out" / name, run()).load_model() for name in ("handed", "whole")]
    assert all(torch.allclose(models[0][name], models[1][name], atol=1e-5) for name in models[1])


def test_a_training_that_diverges_or_is_refused_ends_on_all_ranks(seen: Seen, out: Path) -> None:
    for rank in seen:
        assert rank["diverged"] == ("diverged", 0)
        assert rank["refused"].startswith("UserError: network resnet18-scratch cannot be trained by several processes")
    assert not list((out / "out/refused").rglob("records.jsonl"))


def test_networks_that_mix_samples_or_draw_random_numbers_are_refused() -> None:
    for name in ("mnist-cnn", "mlp", "small-cnn", "digits-cnn", "resnet18", "resnet50"):
        check_features(build(name, (3, 32, 32), 2).features, name)
    with pytest.raises(UserError, match=r"resnet18-live .*BatchNorm.*frozen"):
        check_features(build("resnet18-live", (3, 32, 32), 2).features, "resnet18-live")
    undeclared = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 2))
    with pytest.raises(UserError, match="per_sample = True"):
        check_features(undeclared, "mine")
    undeclared.per_sample = True
    with pytest.raises(UserError, match="dropout inside"):
        check_features(undeclared, "mine")
    with pytest.raises(UserError, match="wrap it as Network"):
        check_data_parallel(make("ERM", net=nn.Sequential(nn.Flatten(), nn.Linear(72, 3))), "mine")


def test_only_torchrun_makes_ranks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert torchrun.world_size() == 1 and torchrun.rank() == 0 and torchrun.exit_status(2) == 2
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    status, shown, error = command(capsys, "list")
    assert (status, shown, error) == (
        2,
        "",
        "error: torchrun is for domainwise train; start domainwise list without it\n",
    )
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert torchrun.exit_status(2) == 0, "lest torchrun end the one that has something to say"


# the real command


def together(*arguments: object) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, "-m", "domainwise", "train", "--device", "cpu", *map(str, arguments)]


def losses(folder: Path) -> list[tuple[Any, ...]]:
    (path,) = (file.parent for file in folder.glob("*/run.json"))
    return [(r.step, r.accuracy, r.loss) for r in RunFolder.at(path).read()[0]]


@pytest.mark.slow
def test_torchrun_leaves_what_the_plain_command_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("--dataset", "BackgroundDigits", "--steps", 20, "--evaluate-every", 10, "--hparam", "batch_size=5")
    status, _, _ = command(capsys, "train", "--device", "cpu", *settings, "--out", tmp_path / "one")
    done = subprocess.run(
        together(*settings, "--json", "--out", tmp_path / "two"), capture_output=True, text=True, timeout=120
    )
    assert status == done.returncode == 0, done.stderr
    assert same(losses(tmp_path / "two"), losses(tmp_path / "one"))
    assert json.loads(done.stdout)["status"] == "done", "one object, from one rank"
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == sorted(p.name for p in (tmp_path / "one").iterdir())


@pytest.mark.slow
def test_torchrun_can_be_interrupted_and_goes_on(tmp_path: Path) -> None:
    settings = ("--dataset", "BackgroundDigits", "--steps", 400, "--evaluate-every", 200, "--hparam", "batch_size=5")
    line = together(*settings, "--out", tmp_path)
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("*/records.jsonl")) and process.poll() is None:
        time.sleep(0.1)
    (claim,) = tmp_path.glob("*/claim.1")
    heard = listening(json.loads(claim.read_text())["pid"])
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert heard == {LOOPBACK}
    assert "the same command continues from there" in error and error.count("stopped after step") == 1
    (checkpoint,) = tmp_path.glob("*/checkpoint.pt")
    stopped = torch.load(checkpoint, weights_only=True)["next_step"]
    assert 0 < stopped < 400
    again = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    steps = [step for step, *_ in losses(tmp_path)]
    assert steps == sorted(steps) and set(steps) == {0, 200, 399} and not checkpoint.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--dataset", "BackgroundDigit"), "unknown dataset 'BackgroundDigit'"),
        (("--dataset", "BackgroundDigits", "--network", "resnet18-scratch"), "cannot be trained by several processes"),
        (("--dataset", "BackgroundDigits", "--out", "/proc/nothing"), "cannot write to /proc/nothing"),
    ],
)
def test_a_mistake_is_told_once(arguments: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    out = () if "--out" in arguments else ("--out", tmp_path)
    done = subprocess.run(together(*arguments, *out), capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 1 and done.stderr.count("error: ") == 1 and complaint in done.stderr
    assert "exitcode  : 2" in done.stderr and "rank      : 0" in done.stderr
