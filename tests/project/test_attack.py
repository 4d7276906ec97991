"""The attack tool: how it judges what a command did, and a small sample of its tries."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from attacks import damage, invocations, tries  # noqa: E402
from attacks.tries import Answer, classify  # noqa: E402
from commands import Command  # noqa: E402
from domainwise.core.parsing import checksum  # noqa: E402

WHOLE = Answer(0, "table", "3 runs", "a 1")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (WHOLE, "same"),
        (Answer(0, "table", "4 runs", "a 1"), "same"),
        (Answer(0, "other", "3 runs", "a 1"), "silent"),
        (Answer(0, "table", "3 runs", "a 2"), "silent"),
        (Answer(0, "other", "3 runs\nnote: a run is damaged", "a 1"), "said"),
        (Answer(2, "", "error: damaged"), "refused"),
        (Answer(1, "", ""), "mute"),
        (Answer(1, "", "Traceback (most recent call last):\n  ..."), "traceback"),
        (Answer(-11, "", ""), "crash"),
        (Answer(None, "", ""), "hang"),
    ],
)
def test_every_end_has_its_name(answer: Answer, outcome: str) -> None:
    assert classify(answer, WHOLE) == outcome
    assert outcome in tries.MEANINGS


def test_every_command_has_a_valid_invocation_to_spoil() -> None:
    assert set(invocations.commands()) <= set(invocations.base(Path("workspace")))


@pytest.mark.parametrize("harm", [damage.damage_bytes, damage.damage_values])
def test_a_seed_repeats_the_same_damage(harm: damage.Damage, tmp_path: Path) -> None:
    file, text = tmp_path / "run.json", json.dumps({"steps": 7, "hparams": {"lr": 0.1}, "domains": ["a", "b"]})
    contents = []
    for seed in (*range(20), *range(20)):
        file.write_text(text)
        what = harm(file, random.Random(seed))
        contents.append((what, file.read_bytes() if file.exists() else None))
    assert contents[:20] == contents[20:]
    assert sum(content != text.encode() for _, content in contents[:20]) > 15


def test_directed_damage_changes_the_named_part_alone_and_its_checksum_fits(tmp_path: Path) -> None:
    file, whole = tmp_path / "model.json", {"classes": ["a", "b"], "training": {"seconds": 1.5, "weights": {"step": 3}}}
    for seed in range(20):
        file.write_text(json.dumps(whole | {"checksum": checksum(whole)}))
        what = damage.damage_values(file, random.Random(seed), forged=True, part="training")
        if "nested" in what:
            continue
        found = json.loads(file.read_text())
        assert found.pop("checksum") == checksum(found) and found["classes"] == whole["classes"]
        assert what.startswith("line 1, /training") and found.get("training") != whole["training"], what


def test_a_damaged_table_differs_in_a_cell(tmp_path: Path) -> None:
    file = tmp_path / "photos.csv"
    for seed in range(20):
        file.write_text("path,label\na.png,cat\n")
        what = damage.damage_values(file, random.Random(seed))
        assert what.startswith("row ") and file.read_bytes() != b"path,label\na.png,cat\n"


QUICK = (
    "list",
    "template",
    "data list",
    "data check",
    "weights list",
    "status",
    "table",
    "figure",
    "publish",
    "unpack",
)


@pytest.mark.parametrize("name", QUICK)
def test_wrong_arguments_end_in_words(name: str, domainwise: Command, tmp_path: Path) -> None:
    invocations.bad_files(tmp_path)
    params, valid = invocations.commands()[name].params, invocations.base(tmp_path)[name]
    for seed in range(8):
        arguments, what = invocations.spoilt(list(valid), params, random.Random(seed))
        result = domainwise(*name.split(), *arguments)
        assert result.status in (0, 1, 2) and "Traceback" not in result.err, what
        assert not result.status or result.err, what


@pytest.mark.slow
def test_a_small_sample_of_bad_invocations_and_damaged_bytes_ends_in_words(tmp_path: Path) -> None:
    counts = ("--kills", "0", "--pages", "0", "--values", "0", "--invocations", "12", "--bytes", "8")
    places = ("--place", str(tmp_path / "place"), "--out", str(tmp_path / "attack.json"))
    command = [sys.executable, str(ROOT / "benchmarks" / "attack.py"), *counts, *places, "--seed", "1", "--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode in (0, 1), done.stderr
    kinds = json.loads((tmp_path / "attack.json").read_text())["kinds"]
    assert {kind: facts["tries"] for kind, facts in kinds.items()} == {"invocations": 12, "bytes": 8}
    for facts in kinds.values():
        assert not {"traceback", "hang", "crash", "mute"} & set(facts["outcomes"]), facts["bad"]
    assert not (tmp_path / "place").exists()
