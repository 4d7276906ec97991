"""The command line: what it prints where, its exit status, and what it says to a user's mistakes."""

import errno
import math
import re
import shlex
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import typer.main

from commands import Command, standard_json
from domainwise.algorithms import ALGORITHMS
from domainwise.cli import app
from domainwise.data.catalogue import DATASETS
from domainwise.data.sources.digits import MNIST_FILES
from domainwise.engine.session import Session
from domainwise.nets import NETWORKS
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps import local

RUN_FILES = {"run.json", "records.jsonl", "model.safetensors", "best.safetensors"}
QUICK = ("--steps", "3", "--hparam", "batch_size=4", "--device", "cpu")
IMAGES, LABELS = MNIST_FILES[:2]


@pytest.fixture
def domainwise(domainwise: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "no data"))
    return domainwise


def files(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file()}


# mistakes


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("train --algorithm DAP", "unknown algorithm 'DAP'.*'DAT'"),
        ("train --algorithm dat", "'DAT'"),
        ("train --algorithm zzzzzzz", "known: .*DAT"),
        ("train --dataset BackgroundDigit", "unknown dataset.*'BackgroundDigits'"),
        ("train --dataset [bold]x", r"unknown dataset '\[bold\]x'"),
        ("train --test-domain 9", "domain of BackgroundDigits '9'"),
        ("train --test-domain scene7", "'scene"),
        ("train --test-domain -1", "domain of BackgroundDigits '-1'"),
        ("train --test-domain 0 --test-domain scene1", "twice"),
        ("train --test-domain 0 --test-domain 1 --test-domain 2 --test-domain 3", "training domain"),
        ("train --test-domain 0 --train-domain scene1", "'scene1' cannot be both"),
        ("train --hparam eps=-1", "eps=-1 must be at least 0"),
        ("train --hparam eps=abc", "eps='abc' must be a number"),
        ("train --hparam eps=true", "eps=True must be a number"),
        ("train --hparam eps=", "eps='' must be a number"),
        ("train --hparam eps=NaN", "finite"),
        ("train --hparam eps=1e999", "finite"),
        pytest.param(f"train --hparam eps=1{'0' * 400}", "eps", id="train --hparam eps=10^400"),
        ("train --hparam batch_size=2.5", "whole number"),
        ("train --hparam batch_size=0", "at least 1"),
        ("train --hparam norm=l1", "one of l2, linf"),
        ("train --hparam dropout=2", "dropout"),
        ("train --hparam epps=1", "hyper-parameter of DAT 'epps'.*'eps'"),
        ("train --hparam eps", "'eps'.*NAME=VALUE"),
        ("train --hparam =2", "'=2'.*NAME=VALUE"),
        ("train --hparam eps=[1]", "eps=.*number or a word"),
        ("train --network small-cn", "'small-cnn'"),
        ("train --precision fp16", "unknown precision 'fp16'"),
        ("train --device gpu", "unknown device 'gpu'"),
        ("train --steps 0", "steps must be at least 1"),
        ("train --evaluate-every 0", "evaluate_every must be at least 1"),
        ("train --dataset ColoredMNIST --data-root nowhere", "nowhere"),
        ("train --dataset ColoredMNIST", "no data/mnist"),
        ("train --out file/below", "cannot write to file/below"),
        ("train --out file", "cannot write to file"),
        ("demo --out file/below", "cannot write to file/below"),
        ("demo --steps 0", "steps must be at least 1"),
        ("demo --device gpu", "unknown device 'gpu'"),
    ],
    ids=lambda value: value[:60],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    domainwise: Command, tmp_path: Path, arguments: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(local, "_Worker", lambda *_: pytest.fail("a worker was started"))
    result = domainwise(*shlex.split(arguments))
    assert result.is_one_line_error, result
    assert re.search(complaint, result.err), result.err
    assert files(tmp_path) == {tmp_path / "file"} and (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize(
    ("damaged", "content"),
    [(IMAGES, b""), (LABELS, b""), (IMAGES, b"\0\0\x08\x03\0\0\0\x05"), (LABELS, b"<html>"), (f"{IMAGES}.gz", b"no")],
    ids=["empty images", "empty labels", "cut images", "no IDX", "no gzip"],
)
def test_a_damaged_data_file_is_one_line_and_leaves_nothing(
    domainwise: Command, tmp_path: Path, damaged: str, content: bytes
) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in MNIST_FILES:
        if not damaged.startswith(name):
            sizes = (5, 28, 28) if "images" in name else (5,)
            header = bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}i", *sizes)
            (folder / name).write_bytes(header + bytes(math.prod(sizes)))
    (folder / damaged).write_bytes(content)
    before = files(tmp_path)
    result = domainwise("train", "--dataset", "ColoredMNIST", "--data-root", tmp_path / "data", "--out", "out")
    assert result.is_one_line_error, result
    assert damaged in result.err and (content != b"" or "it is empty" in result.err)
    assert files(tmp_path) == before


def test_a_full_disk_is_one_line(domainwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunFolder, "append", full)
    result = domainwise("train", "--hparam", "batch_size=4", "--steps", 2, "--device", "cpu", "--out", "out")
    assert result.status == 1 and re.fullmatch(
        "error: No space left on device: cannot write to .*: make room there; .* continues\n", result.err
    )


@pytest.mark.parametrize(
    "arguments", ["train --steps many", "demo --trials 0", "train --draw -1", "frobnicate", "train --frobnicate"]
)
def test_what_the_parser_refuses_exits_with_two_as_well(domainwise: Command, tmp_path: Path, arguments: str) -> None:
    result = domainwise(*shlex.split(arguments))
    assert result.status == 2 and result.out == "" and result.err
    assert not files(tmp_path)


# list and help


@pytest.mark.parametrize("registry", [ALGORITHMS, DATASETS, NETWORKS], ids=["algorithms", "datasets", "networks"])
def test_list_shows_everything_with_a_line_each(domainwise: Command, registry: Any) -> None:
    result = domainwise("list")
    assert result.status == 0 and result.err == ""
    for name in registry:
        (line,) = [line for line in result.out.splitlines() if line.split()[:1] == [name]]
        assert len(line.split()) > 2, "a name and what it is"


def test_list_as_json(domainwise: Command) -> None:
    result = domainwise("list", "--json")
    things = standard_json(result.out)
    assert result.status == 0 and result.err == ""
    assert {kind: list(entries) for kind, entries in things.items()} == {
        "algorithms": list(ALGORITHMS),
        "datasets": list(DATASETS),
        "networks": list(NETWORKS),
        "augmentations": ["domainbed", "domainbed-original-size", "domainbed-uncropped", "oodbench"],
    }
    assert all(summary.strip() for entries in things.values() for summary in entries.values())


@pytest.mark.parametrize("command", ["demo", "train", "list"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_shows_an_example(domainwise: Command, command: str, option: str) -> None:
    result = domainwise(command, option)
    words = " ".join(result.out.split())
    assert result.status == 0 and "Examples:" in words
    assert words.index(f"domainwise {command}", words.index("Examples:")) > 0


def test_help_of_the_whole_names_every_command(domainwise: Command) -> None:
    result = domainwise("--help")
    assert result.status == 0
    assert all(re.search(rf"\b{command}\b", result.out) for command in ("demo", "train", "list"))


def test_no_help_is_eaten_as_markup() -> None:
    """Words in square brackets are styles to the help's renderer, and vanish."""
    commands = [typer.main.get_command(app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            assert not re.search(r"\[[a-z]", getattr(parameter, "help", None) or ""), (command.name, parameter.name)


# train


def test_train_prints_a_table_and_continues_where_nothing_is_left_to_do(domainwise: Command, tmp_path: Path) -> None:
    first = domainwise("train", *QUICK)
    assert first.status == 0
    (folder,) = (entry for entry in (tmp_path / "runs" / "train").iterdir() if entry.is_dir())
    for word in ("DAT", "scene1 (unseen)", "scene2 (trained on)", "after step 2", folder.name):
        assert word in first.out
    assert "selected by training-domain validation (for predict, evaluate, export, drift)" in " ".join(
        first.out.split()
    )
    assert {file.name for file in folder.iterdir()} == RUN_FILES
    assert domainwise("train", *QUICK).out == first.out


def test_train_as_json(domainwise: Command, tmp_path: Path) -> None:
    options = ("--algorithm", "IRM", "--test-domain", "scene2", "--test-domain", "3", "--hparam", "anneal=2")
    result = domainwise("train", *QUICK, *options, "--seed", 3, "--trial", 1, "--json", "--out", "here")
    summary = standard_json(result.out)
    assert result.status == 0 and result.out.lstrip().startswith("{"), "standard output is JSON and nothing else"
    assert (summary["status"], summary["reason"]) == ("done", "")
    assert summary["run"]["algorithm"] == "IRM" and summary["run"]["test_domains"] == ["scene2", "scene4"]
    assert (summary["run"]["seed"], summary["run"]["trial"], summary["run"]["hparams"]["anneal"]) == (3, 1, 2)
    assert (tmp_path / summary["folder"] / "model.safetensors").is_file() and summary["id"] in summary["folder"]
    assert (
        summary["weights"] == f"weights of step {summary['selected']['step']}, selected by training-domain validation"
    )
    parts = {(part["domain"], part["split"]) for part in summary["final"]}
    assert parts == {("scene1", "out"), ("scene3", "out")} | {
        (domain, split) for domain in ("scene2", "scene4") for split in ("in", "out")
    }
    assert all(0 <= part["accuracy"] <= 1 and part["loss"] > 0 for part in summary["final"])


def test_a_domain_whose_name_begins_with_a_minus(domainwise: Command) -> None:
    """As in the help's example."""
    options = ("--dataset", "ColoredMNIST-embedded", "--network", "mlp", "--test-domain", "-90%", "--json")
    result = domainwise("train", *QUICK, *options)
    assert result.status == 0 and standard_json(result.out)["run"]["test_domains"] == ["-90%"]


@pytest.mark.parametrize("extra", [(), ("--json",)], ids=["table", "json"])
def test_a_diverged_run_exits_with_one_and_says_so(domainwise: Command, extra: tuple[str, ...]) -> None:
    result = domainwise("train", *QUICK, "--evaluate-every", 1, "--hparam", "lr=1e30", *extra)
    assert result.status == 1 and "diverged" in result.err and "not finite" in " ".join(result.err.split())
    if extra:
        assert standard_json(result.out)["status"] == "diverged"
    else:
        assert "Records: " in result.out and "Model: " not in result.out, "there is none"


def test_ctrl_c_while_training_says_how_to_continue(domainwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Session.step

    def interrupted_step(session: Session) -> None:
        original(session)
        if session.next_step == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "step", interrupted_step)
        stopped = domainwise("train", *QUICK, "--json")
    assert stopped.status == 130 and stopped.out == ""
    assert "the same command continues" in " ".join(stopped.err.split()) and "Traceback" not in stopped.err
    continued = standard_json(domainwise("train", *QUICK, "--json").out)
    whole = standard_json(domainwise("train", *QUICK, "--json", "--out", "elsewhere").out)
    assert continued["status"] == "done" and continued["final"] == whole["final"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "m", "--port", 99999), ("'--port'", "65535", "; see domainwise serve --help")),
        (("train", "--steps", "abc"), ("'--steps'", "integer", "; see domainwise train --help")),
        (("train", "--stepz", 3), ("no such option: --stepz", "--steps", "; see domainwise train --help")),
        (("predict",), ("missing argument", "; see domainwise predict --help")),
        (("data", "chek"), ("no such command 'chek'", "; see domainwise data --help")),
        (("trian",), ("no such command 'trian'", "; see domainwise --help")),
    ],
)
def test_wrong_usage_is_one_line(domainwise: Command, arguments: tuple[object, ...], words: tuple[str, ...]) -> None:
    result = domainwise(*arguments)
    assert result.is_one_line_error and all(word in result.err for word in words), result.err


def test_a_command_of_commands_alone_shows_its_help(domainwise: Command) -> None:
    result = domainwise("data")
    assert result.status == 2 and "check" in result.out + result.err and "error:" not in result.err
