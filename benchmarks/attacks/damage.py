"""Files with damaged bytes or wrong values, one of every format, and the commands that read them."""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attacks.tries import Answer, Try, ask
from attacks.workspace import SMALL, photos, sweep_arguments, train_arguments
from domainwise.core.parsing import checksum
from domainwise.protocol import checkpoint_file
from domainwise.protocol.checked_lines import unseal

Command = tuple[str, ...]


@dataclass(frozen=True)
class Format:
    """Files of one format below a folder of the workspace, and the commands that read them."""

    name: str
    folder: str
    pattern: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...] = ()
    optional: bool = False
    """Whether a folder without such files is whole, too."""
    part: str = ""
    """The part of a JSON file whose values are changed, where a change anywhere would rarely reach it."""
    comparable: bool = True
    """Whether damage must be noticed: the user's own images, weights and results of DomainBed are what they are."""


def formats(workspace: Path) -> tuple[Format, ...]:
    image = str(workspace / "photos/lab/cat/000.png")
    reading: tuple[Command, ...] = (
        ("status", "sweep", "--json"),
        ("table", "sweep", "--json"),
        ("table", "sweep", "--selection", "all", "--format", "csv"),
        ("report", "sweep", "--no-models", "--out", "out.html"),
        ("publish", "sweep", "out"),
        ("export-domainbed", "sweep", "out"),
        sweep_arguments(workspace),
    )
    models: tuple[Command, ...] = (
        ("audit", "sweep", "--json"),
        ("cam", "sweep", "--json", "--out", "out.png"),
        ("perturbations", "sweep", "--json", "--out", "out.png"),
    )
    using: tuple[Command, ...] = (
        ("predict", "model", image),
        ("evaluate", "model", "--data", photos(workspace), "--json"),
        ("drift", "model", str(workspace / "photos/lab"), "--json"),
    )
    combined = tuple((command[0], "combined", *command[2:]) for command in reading[:4])
    new: tuple[Command, ...] = (
        ("calibrate", "model", "--data", photos(workspace), "--json"),
        ("dfr", "model", "--data", photos(workspace), "--out", "out"),
        ("interpolate", "model", "--alphas", "0,1", "--json"),
        ("export", "model", "--to", "torch", "--out", "out.pt2"),
    )
    published: tuple[Command, ...] = (
        ("table", "published", "--json"),
        ("status", "published", "--json"),
        ("report", "published", "--no-models", "--out", "out.html"),
        ("unpack", "published", "out"),
    )
    short = ("--steps", "2", "--evaluate-every", "1", *SMALL, "--out", "out", "--json")
    train = ("train", "--test-domain", "lab", "--algorithm", "ERM", *short)
    continued = train_arguments(workspace, "unfinished")
    return (
        Format("run.json", "sweep", "*/run.json", (*reading, *models)),
        Format("records.jsonl", "sweep", "*/records.jsonl", (*reading, models[0])),
        Format(
            "penalties.jsonl", "sweep", "*/penalties.jsonl", (("figure", "penalties", "sweep", "--json"), *reading[3:5])
        ),
        Format("weights of a run", "sweep", "*/*.safetensors", models),
        Format("audit.json", "sweep", "*/audit.json", (("report", "sweep", "--no-models", "--out", "out.html"),)),
        Format("plan", "sweep", "plans/*.json", reading),
        Format("list of a plan's runs", "sweep", "plans/*.json.gz", reading[:5]),
        Format("checkpoint.pt", "unfinished", "*/checkpoint.pt", (continued,)),
        Format("records of an unfinished run", "unfinished", "*/*.json*", (continued,)),
        Format("runs.jsonl.gz", "published", "runs.jsonl.gz", published),
        Format("published plan", "published", "plans/*", published[:3], optional=True),
        Format("model.json", "model", "model.json", (*using, *new)),
        Format("training of a model", "model", "model.json", (*using, *new), part="training"),
        Format("trained_on.safetensors", "model", "trained_on.safetensors", (using[1], *new[:2])),
        Format(
            "calibration.safetensors",
            "calibrated",
            "calibration.safetensors",
            (("predict", "calibrated", image, "--abstain", "coverage=0.9"), ("predict", "calibrated", image)),
        ),
        Format("description of a combination", "combined", "*/run.json", combined),
        Format("records of a combination", "combined", "*/records.jsonl", combined),
        Format("model.safetensors", "model", "model.safetensors", using),
        Format("reference.safetensors", "model", "reference.safetensors", using[2:]),
        Format("decode cache", "cache", "*/*/*", ((*train, "--data", photos(workspace)),)),
        Format("saved data", "saved", "*", (("evaluate", "model", "--data", "saved", "--json"),), needs=("model",)),
        *(
            Format(
                f"table, {kind}",
                "tables",
                f"photos.{kind}",
                (
                    ("data", "check", f"tables/photos.{kind}", "--json"),
                    (*train, "--data", f"tables/photos.{kind}"),
                ),
                comparable=False,
            )
            for kind in ("csv", "jsonl", "parquet")
        ),
        Format(
            "DomainBed's results",
            "domainbed",
            "*/results.jsonl",
            (("table", "domainbed", "--json"),),
            comparable=False,
        ),
        Format(
            "weights",
            "weights",
            "*.safetensors",
            ((*train, "--data", photos(workspace), "--weights", "weights/small.safetensors"),),
            comparable=False,
        ),
        Format(
            "image",
            "photos",
            "*/*/*.png",
            (("data", "check", "photos", "--json"), ("predict", "model", "photos"), (*train, "--data", "photos")),
            needs=("model",),
            comparable=False,
        ),
    )


def written(command: Command) -> tuple[str, ...]:
    """The file or folder that is a command's result."""
    if command[0] in ("publish", "export-domainbed", "unpack"):
        return command[2:3]
    if command[0] in ("report", "sweep", "train"):
        return (command[command.index("--out") + 1],)
    return ()


def byte_tries(workspace: Path, place: Path, count: int, seed: int) -> list[Try]:
    return _tries("bytes", workspace, place, count, seed, damage_bytes)


def value_tries(workspace: Path, place: Path, count: int, seed: int) -> list[Try]:
    """Every other one keeps the checksums, and must be noticed. In the rest they are made to fit, as somebody would who
    changes a file on purpose: whatever such a file says is data, and must not be more than a line."""
    return _tries("values", workspace, place, count, seed, damage_values)


Damage = Callable[[Path, random.Random], str]


def _tries(kind: str, workspace: Path, place: Path, count: int, seed: int, damage: Damage) -> list[Try]:
    """Every format in turn, one of its files, one of its commands."""
    known = [(one, sorted((workspace / one.folder).glob(one.pattern))) for one in formats(workspace)]
    known = [(one, [file for file in files if file.is_file()]) for one, files in known]
    known = [(one, files) for one, files in known if files]
    if kind == "values":
        known = [(one, files) for one, files in known if one.name != "image"]
    else:
        known = [(one, files) for one, files in known if not one.part]
    baselines: dict[Command, Answer] = {}
    tries = []
    for number in range(count):
        luck = random.Random(f"{seed}/{kind}/{number}")
        form, files = known[number % len(known)]
        command = luck.choice(form.commands)
        file = luck.choice(files).relative_to(workspace)
        needs = (form.folder, *form.needs)
        forged = kind == "values" and (file.suffix == ".gz" or bool(form.part) or luck.random() < 0.5)
        comparable = form.comparable and not forged
        if comparable and command not in baselines:
            whole = Try(kind, number, form.name, "nothing", command, needs, watch=written(command))
            baselines[command] = answer = ask(whole, workspace, place)
            if answer.status:
                raise SystemExit(f"domainwise {' '.join(command)} failed undamaged:\n{answer.out}{answer.err}")

        harm = partial(damage_values, forged=True, part=form.part) if forged else damage

        def prepare(scratch: Path, file: Path = file, number: int = number, harm: Damage = harm) -> None:
            harm(scratch / file, random.Random(f"{seed}/{kind}/{number}/damage"))

        what = _described(workspace / file, harm, random.Random(f"{seed}/{kind}/{number}/damage"), place)
        absent = form.optional and what == "deleted"
        what = f"{file}: {what}{', checksums made to fit' if forged else ''}"
        baseline = baselines.get(command) if comparable and not absent else None
        tries.append(Try(kind, number, form.name, what, command, needs, prepare, written(command), baseline, file.name))
    return tries


def _described(file: Path, damage: Damage, luck: random.Random, place: Path) -> str:
    copy = place / file.name
    copy.write_bytes(file.read_bytes())
    try:
        return damage(copy, luck)
    finally:
        copy.unlink(missing_ok=True)


# Bytes


def damage_bytes(file: Path, luck: random.Random) -> str:
    """Flips a bit, sets bytes to zero, or shortens, deletes, empties, doubles or replaces the file."""
    data = bytearray(file.read_bytes())
    at, length = luck.randrange(len(data)), luck.choice((1, 8, 64, 512))
    kind = luck.choice(("flip", "flip", "flip", "zero", "cut", "remove", "insert", "delete", "empty", "double", "text"))
    if kind == "flip":
        data[at] ^= 1 << luck.randrange(8)
    elif kind == "zero":
        data[at : at + length] = bytes(len(data[at : at + length]))
    elif kind == "cut":
        del data[at:]
    elif kind == "remove":
        del data[at : at + length]
    elif kind == "insert":
        data[at:at] = luck.randbytes(length)
    elif kind == "double":
        data *= 2
    elif kind in ("empty", "text"):
        data = bytearray(b"" if kind == "empty" else b"not what it was\n")
    if kind == "delete":
        file.unlink()
        return "deleted"
    file.write_bytes(data)
    return {"flip": f"a bit flipped at byte {at}", "zero": f"{length} bytes zero at {at}"}.get(kind, f"{kind} at {at}")


# Values


WRONG: Sequence[Any] = (
    None, True, False, -1, 0, 2**63, 10**400, 1.5, float("nan"), float("inf"), float("-inf"), 1e308, "", "x",
    "x" * 5000, "../../etc", "\x00", "\ud800", "<script>alert(1)</script>", [], {}, [1], [None], {"a": 1}, [[[[[]]]]],
    "NaN", {"x": {"x": {"x": {}}}}, "9" * 5000,
)  # fmt: skip


def damage_values(file: Path, luck: random.Random, forged: bool = False, part: str = "") -> str:
    """Another value in a file that is otherwise whole; its checksum is as it was, or, if forged, made to fit."""
    if file.suffix == ".safetensors":
        return _tensors(file, luck, forged)
    if file.suffix == ".pt":
        return _checkpoint(file, luck, forged)
    if file.suffix in (".npy", ".bin", ".parquet"):
        return damage_bytes(file, luck)
    if file.suffix == ".csv":
        return _cells(file, luck)
    packed = file.suffix == ".gz"
    text = (gzip.decompress(file.read_bytes()) if packed else file.read_bytes()).decode()
    if forged and ".jsonl" in file.name:
        text = unseal(text.encode()).decode()  # as an earlier version wrote it
    lines = text.splitlines() if ".jsonl" in file.name else [text]
    at = luck.randrange(len(lines))
    value = json.loads(lines[at])
    if part:
        value[part], what = _changed(value[part], luck, f"/{part}")
    else:
        value, what = _changed(value, luck)
    if forged and isinstance(value, dict) and isinstance(value.get("checksum"), str):
        value["checksum"] = checksum({name: item for name, item in value.items() if name != "checksum"})
    lines[at] = json.dumps(value) if what != "nested" else "[" * 100_000
    written = ("\n".join(lines) + "\n").encode(errors="surrogatepass")
    file.write_bytes(gzip.compress(written) if packed else written)
    return f"line {at + 1}, {what}"


def _cells(file: Path, luck: random.Random) -> str:
    """A table with another text in one cell, its heading included."""
    rows = list(csv.reader(file.read_text().splitlines()))
    row = luck.randrange(len(rows))
    column = luck.randrange(len(rows[row]))
    rows[row][column] = wrong = str(luck.choice(WRONG))
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    file.write_bytes(text.getvalue().encode(errors="surrogatepass"))
    return f"row {row}, column {column} is {wrong[:40]!r}"


def _changed(value: Any, luck: random.Random, path: str = "") -> tuple[Any, str]:
    """The value with one part of it, at any depth, replaced, removed, doubled or renamed."""
    if isinstance(value, (dict, list)) and value and luck.random() < 0.85:
        keys: Sequence[Any] = list(value) if isinstance(value, dict) else range(len(value))
        key = luck.choice(keys)
        kind = luck.random()
        copy: Any = value.copy()
        if kind < 0.15:
            del copy[key]
            return copy, f"{path}/{key} missing"
        if kind < 0.25 and isinstance(copy, dict):
            copy["an unknown key"] = luck.choice(WRONG)
            return copy, f"{path} with an unknown key"
        if kind < 0.3 and isinstance(copy, list):
            copy.append(copy[key])
            return copy, f"{path}/{key} doubled"
        copy[key], what = _changed(value[key], luck, f"{path}/{key}")
        return copy, what
    if luck.random() < 0.02:
        return value, "nested"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and luck.random() < 0.3:
        other = luck.choice((value + 1, -value, value * 1000, value / 3))
        return other, f"{path} is {other} instead of {value}"
    wrong = luck.choice(WRONG)
    shown = repr(wrong)
    return wrong, f"{path} is {shown if len(shown) < 40 else shown[:40] + '...'}"


def _tensors(file: Path, luck: random.Random, forged: bool) -> str:
    """A tensor of wrong values, shape or type, a missing or an unknown one, or a wrong header."""
    import safetensors.torch
    import torch

    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if luck.random() < 0.4:
        header, what = _changed(json.loads(data[8 : 8 + length]), luck)
        text = json.dumps(header).encode(errors="surrogatepass")
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
        return f"header {what}"
    tensors = safetensors.torch.load(data)
    name = luck.choice(sorted(tensors))
    kind = luck.choice(("nan", "huge", "shape", "missing", "unknown", "type"))
    old = tensors[name]
    if kind == "missing":
        del tensors[name]
    elif kind == "unknown":
        tensors["an unknown tensor"] = torch.zeros(3)
    else:
        tensors[name] = {
            "nan": torch.full_like(old.float(), torch.nan).to(old.dtype) if old.is_floating_point() else old,
            "huge": torch.full_like(old, 3e38) if old.is_floating_point() else old + 2**40,
            "shape": torch.zeros(*old.shape, 2),
            "type": old.to(torch.int16),
        }[kind]
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__")
    file.write_bytes(safetensors.torch.save(tensors, None if forged else metadata))
    return f"{name}: {kind}"


def _checkpoint(file: Path, luck: random.Random, forged: bool) -> str:
    """A checkpoint whose tensors or numbers were changed."""
    before = file.read_bytes()
    state, what = _changed_state(checkpoint_file.load(file), luck)
    checkpoint_file.save(file, state)
    if not forged:
        trailer = len(checkpoint_file.MAGIC) + 32
        file.write_bytes(file.read_bytes()[:-trailer] + before[-trailer:])
    return what


def _changed_state(value: Any, luck: random.Random, path: str = "") -> tuple[Any, str]:
    import torch

    if isinstance(value, (dict, list, tuple)) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = luck.choice(keys)
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        if luck.random() < 0.2:
            del copy[key]
            return copy, f"{path}/{key} missing"
        copy[key], what = _changed_state(value[key], luck, f"{path}/{key}")
        return (tuple(copy) if isinstance(value, tuple) else copy), what
    wrong: Any = luck.choice(
        (None, -1, 10**30, float("nan"), "x", [], {}, torch.zeros(3), torch.full((2, 2), torch.nan))
    )
    return wrong, f"{path} is {str(wrong)[:40]}"
