"""The command line's manners: completion, options anywhere on the line, colour on terminals alone."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import domainwise as dw
from commands import Command
from domainwise.cli import global_options_first
from domainwise.core import logs

COLOUR = re.compile(rb"\x1b\[[\d;]*3[0-7][\d;]*m")
PROGRAM = (sys.executable, "-m", "domainwise")


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    return kept | {"TERM": "xterm-256color"} | extra


def completed(words: str) -> list[str]:
    """What bash would be told after these words, the last of which is unfinished."""
    asked = {"COMP_WORDS": f"domainwise {words}", "COMP_CWORD": str(len(words.split(" ")))}
    extra = asked | {"_DOMAINWISE_COMPLETE": "complete_bash"}
    return subprocess.run(PROGRAM, env=environment(**extra), capture_output=True, text=True, check=True).stdout.split()


def test_the_shell_completes_commands_options_and_names() -> None:
    from_bash = ["bash", "-c", f"{shlex.join(PROGRAM)} --show-completion; exit $?"]  # the shell is asked who it is
    shown = subprocess.run(from_bash, capture_output=True, text=True, check=True).stdout
    assert "_DOMAINWISE_COMPLETE=complete_bash" in shown and "complete -o default -F _domainwise_completion" in shown
    assert completed("exp") == ["export", "export-domainbed"]
    assert completed("predict --cs") == ["--csv"]
    assert completed("figure eps") == ["eps-alpha"]
    assert completed("sweep --algorithms ERM,DA") == ["ERM,DAT", "ERM,DANN"]


def on_a_terminal(*arguments: str, **extra: str) -> bytes:
    """What a command writes to standard error where that is a terminal."""
    reader, writer = pty.openpty()
    subprocess.run([*PROGRAM, *arguments], stderr=writer, stdout=subprocess.DEVNULL, env=environment(**extra))
    os.close(writer)
    written = b""
    try:
        while part := os.read(reader, 4096):
            written += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(reader)
    return written


def test_colour_only_on_terminals_that_want_it() -> None:
    mistake = ("template", "nothing")
    assert COLOUR.search(on_a_terminal(*mistake))
    plain = on_a_terminal(*mistake, NO_COLOR="1")
    assert b"unknown template" in plain and not COLOUR.search(plain)
    piped = subprocess.run([*PROGRAM, *mistake], capture_output=True, env=environment())
    assert b"unknown template" in piped.stderr and b"\x1b" not in piped.stdout + piped.stderr
    helped = subprocess.run([*PROGRAM, "predict", "--help"], capture_output=True, env=environment())
    assert b"--csv" in helped.stdout and b"\x1b" not in helped.stdout


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train --verbose --steps 2", "--verbose train --steps 2"),
        ("train --plugin a.py -v --plugin=b.py", "--plugin a.py -v --plugin=b.py train"),
        ("--log-file x train --log-to mlflow", "--log-file x train --log-to mlflow"),
        ("predict m --log-file x -- -v", "--log-file x predict m -- -v"),
        ("train --plugin", "--plugin train"),
        ("", ""),
    ],
)
def test_options_of_every_command_may_stand_anywhere(typed: str, meant: str) -> None:
    assert global_options_first(typed.split()) == meant.split()


def test_verbose_says_more(domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VERBOSE, "")
    quick = ("--algorithm", "ERM", "--steps", 1, "--hparam", "batch_size=2", "--out")
    assert "from step 0" not in domainwise("train", *quick, tmp_path / "quiet").err
    result = domainwise("train", *quick, tmp_path / "loud", "--verbose")
    assert result.status == 0 and "from step 0 of 1" in result.err and "from step 0" not in result.out
    monkeypatch.undo()
    logs.configure()


def test_what_a_plugin_would_know_is_said_to_be_one(domainwise: Command) -> None:
    result = domainwise("train", "--algorithm", "Mine")
    assert result.is_one_line_error and "Load your own as a plugin (--plugin)" in result.err


def test_versions_without_torch() -> None:
    script = "import sys\nfrom domainwise.cli import main\ntry:\n main(['--version'])\nfinally:\n print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    first, modules = out.splitlines()
    assert re.fullmatch(r"domainwise \S+ \(torch \S+, Python \S+\)", first) and "torch" not in modules.split()


def test_names_are_listed_by_kind_and_pattern(domainwise: Command) -> None:
    assert json.loads(domainwise("list", "--algorithms", "*dat", "--json").out) == {
        "algorithms": {name: dw.ALGORITHMS.summary(name) for name in ("DAT", "LDAT")}
    }
    everything = json.loads(domainwise("list", "r*", "--json").out)
    assert "resnet18" in everything["networks"] and "RotatedMNIST" in everything["datasets"]
    assert domainwise("list", "nothing*").is_one_line_error


def test_every_command_has_a_panel(domainwise: Command) -> None:
    shown = domainwise("--help").out
    assert "─ Commands ─" not in shown
    for panel in ("Get started", "Train and compare", "Use a model", "Run a study", "See and explain"):
        assert f"─ {panel} ─" in shown


def test_a_name_that_is_too_long_is_one_line(domainwise: Command) -> None:
    result = domainwise("status", "x" * 5000)
    assert result.is_one_line_error and len(result.err) < 300
