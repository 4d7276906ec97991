"""Every command with a wrong, missing or odd value for one of its options or arguments."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer.main

from attacks.tries import Try
from attacks.workspace import SMALL, photos, sweep_arguments, train_arguments

FOLDERS = ("sweep", "model", "published")
"""What commands find in their scratch folder; the images lie at a path of their own."""
LONG = "x" * 5000
NUMBERS = (
    "",
    "x",
    "-1",
    "0",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e3",
    str(2**63),
    str(10**30),
    "9" * 5000,
    " 3",
    "٣",
    "0x10",
)
TEXTS = (
    "", " ", LONG, "a\nb", "[bold]x[/]", "a,b", ",", "../..", "--", "-x", "😀",
    "\x1b[31m", "%s{}", "=1+1", "x\udcff",
    "x=", "=", "eps=nan", "eps=1e999", "eps=[1]", "eps", "lr=-1", "true", "null", "0", "99", "nan", "ERM,ERM",
    "*", "[", "a\0b",
)  # fmt: skip
PATHS = (
    "nowhere", "bad/file.txt", "bad/empty", "", LONG, "a/" * 2000, "bad/loop", "bad/no_image.png", "bad/bad.json",
    "bad/zeros.bin", "bad/folder.png", "bad/file.txt/below", "/dev/null", "/proc/version", "~nobody/x", "a\nb",
    "x\udcff", "bad/code.py", "bad/[x]*?", "--", "bad/bad.csv", "bad/empty.gz", "😀.png", "a\0b",
)  # fmt: skip


def base(workspace: Path) -> dict[str, tuple[str, ...]]:
    """A valid, quick invocation of every command."""
    data = photos(workspace)
    image = f"{data}/lab/cat/000.png"
    small = ("--steps", "2", *SMALL)
    one = ("--hparams", "1", "--trials", "1")
    return {
        "demo": ("--steps", "1", "--trials", "1", "--workers", "1", "--out", "out"),
        "train": train_arguments(workspace, "out")[1:],
        "compare": ("--data", data, "--algorithms", "ERM,IRM", *one, *small, "--workers", "1"),
        "predict": ("model", image),
        "evaluate": ("model", "--data", data),
        "drift": ("model", f"{data}/lab"),
        "export": ("model", "--to", "torch", "--out", "out.pt2"),
        "interpolate": ("model", "--alphas", "0,1"),
        "soup": ("sweep", "--algorithm", "ERM"),
        "ensemble": ("sweep", "--algorithm", "ERM"),
        "sweep": (*sweep_arguments(workspace, "out")[1:], "--hparams", "1"),
        "bench": ("--algorithms", "ERM", "--seconds", "0", "--batch-size", "2", "--device", "cpu"),
        "reproduce": ("table1", "--dataset", "ColoredMNIST", "--algorithms", "ERM", *one, "--dry-run"),
        "status": ("sweep",),
        "table": ("sweep",),
        "report": ("sweep", "--no-models", "--out", "out.html"),
        "figure": ("curves", "sweep", "--out", "out.png"),
        "publish": ("sweep", "out"),
        "unpack": ("published", "out"),
        "export-domainbed": ("sweep", "out"),
        "cam": ("sweep", "--out", "out.png"),
        "perturbations": ("sweep", "--out", "out.png"),
        "audit": ("sweep",),
        "shift": ("ColoredMNIST-embedded", "--images", "200", "--test-domain", "0"),
        "theory": ("--out", "out"),
        "template": ("algorithm",),
        "doctor": (),
        "list": (),
        "data list": (),
        "data get": ("ColoredMNIST",),
        "data check": (data,),
        "data manifest": (data, "--out", "out.csv"),
        "data cache list": (),
        "data cache clear": ("--yes",),
        "calibrate": ("model", "--data", data),
        "serve": ("model", "--sets", "0.9", "--abstain", "risk=0.05"),  # refused: the model is not calibrated
        "dfr": ("model", "--data", data, "--out", "out"),
        "features": (data, "--network", "small-cnn", "--weights", "model/model.safetensors", "--image-size", "8",
                     "--device", "cpu", "--out", "out"),
        "weights list": (),
        "weights get": ("resnet18",),
    }  # fmt: skip


def commands() -> dict[str, Any]:
    """{"data list": click command}, of all there are."""
    found: dict[str, Any] = {}

    def walk(name: str, command: Any) -> None:
        inner = getattr(command, "commands", None)
        if inner is None:
            found[name] = command
            return
        for word, part in inner.items():
            walk(f"{name} {word}".strip(), part)

    from domainwise.cli import app

    walk("", typer.main.get_command(app))
    return found


def invocation_tries(workspace: Path, count: int, seed: int) -> list[Try]:
    """Every command in turn."""
    known, valid = commands(), base(workspace)
    if missing := set(known) - set(valid):
        raise SystemExit(f"no valid invocation of {', '.join(sorted(missing))} is known here: add one")
    names = sorted(known)
    tries = []
    for number in range(count):
        luck = random.Random(f"{seed}/invocations/{number}")
        name = names[number % len(names)]
        arguments, what = spoilt(list(valid[name]), known[name].params, luck)
        tries.append(Try("invocations", number, name, what, (*name.split(), *arguments), FOLDERS, bad_files))
    return tries


def spoilt(arguments: list[str], params: Sequence[Any], luck: random.Random) -> tuple[list[str], str]:
    """The arguments with one mistake, and what it is."""
    options = [p for p in params if p.param_type_name == "option" and p.name != "help"]
    places = [i for i, word in enumerate(arguments) if not word.startswith("-") and not _is_value(arguments, i)]
    kind = luck.choice(("option",) * 5 + ("argument",) * 3 + ("drop", "unknown", "global", "extra"))
    if kind == "option" and options:
        option = luck.choice(options)
        if option.is_flag:
            return [*arguments, option.opts[0]], f"also {option.opts[0]}"
        value = luck.choice(values_for(option))
        return [*arguments, f"{option.opts[0]}={value}"], f"{option.opts[0]} {_short(value)}"
    if kind == "argument" and places:
        at = luck.choice(places)
        value = luck.choice((*PATHS, *TEXTS))
        return [*arguments[:at], value, *arguments[at + 1 :]], f"argument {at} {_short(value)}"
    if kind == "drop" and arguments:
        at = luck.randrange(len(arguments))
        return arguments[:at] + arguments[at + 1 :], f"without {_short(arguments[at])}"
    if kind == "global":
        option, value = luck.choice(("--plugin", "--log-file")), luck.choice(PATHS)
        return [*arguments, f"{option}={value}"], f"{option} {_short(value)}"
    if kind == "extra":
        value = luck.choice(TEXTS)
        return [*arguments, value], f"also {_short(value)}"
    return [*arguments, "--no-such-option"], "also --no-such-option"


def values_for(option: Any) -> tuple[str, ...]:
    kind = str(option.display_type)
    if "int" in kind or "float" in kind:
        return NUMBERS
    return PATHS if "path" in kind.lower() else TEXTS


def _is_value(arguments: Sequence[str], at: int) -> bool:
    return (
        at > 0 and arguments[at - 1].startswith("--") and arguments[at - 1] not in ("--no-models", "--dry-run", "--yes")
    )


def _short(value: str) -> str:
    return ascii(value if len(value) < 50 else f"{value[:20]}... of {len(value)} characters")


def bad_files(scratch: Path) -> None:
    """Files and folders that are not what commands want."""
    bad = scratch / "bad"
    (bad / "empty").mkdir(parents=True)
    (bad / "folder.png").mkdir()
    (bad / "loop").symlink_to("loop")
    (bad / "file.txt").write_text("text\n")
    (bad / "no_image.png").write_text("no image\n")
    (bad / "bad.json").write_text('{"a": [1, 2')
    (bad / "bad.csv").write_text('a,b\n"1,2\n')
    (bad / "zeros.bin").write_bytes(bytes(4096))
    (bad / "empty.gz").write_bytes(b"")
    (bad / "code.py").write_text("raise ValueError('not a plugin')\n")
