"""Random damage to every file that decides a number: noticed and named, or without consequence. Never another result.

TRIES=300 in the environment tries each format so often and prints what became of them.
"""

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.data.images.cache import decode
from domainwise.data.sources.saved import load_environments, save_environments
from domainwise.engine.train import Interrupted, train
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.reports.publish import publish, unpack
from domainwise.sweeps.collection import collect
from domainwise.sweeps.plan import plan_sweep, saved_plans
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.published import read_published
from short_trainings import at_step
from small_datasets import picture, table

TRIES = int(os.environ.get("TRIES", "12"))
DATA = table()


def harm(data: bytes, luck: random.Random) -> bytes:
    """The bytes with a flipped bit, a changed byte, a part missing, zeroed or doubled, or cut short."""
    at, length = luck.randrange(len(data)), luck.choice((1, 7, 64, len(data) // 3 + 1))
    match luck.choice(("flip", "flip", "flip", "byte", "cut", "zero", "delete", "double", "empty")):
        case "flip":
            return data[:at] + bytes([data[at] ^ 1 << luck.randrange(8)]) + data[at + 1 :]
        case "byte":
            return data[:at] + luck.randbytes(1) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "zero":
            return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
        case "delete":
            return data[:at] + data[at + length :]
        case "double":
            return data[: at + length] + data[at:]
        case _:
            return b""


def judge(name: str, file: Path, result: Callable[[], Any], *, tries: int = TRIES) -> Counter[str]:
    """Damages a file over and over: `result` must be as before, or raise UserError in one line."""
    luck, whole, expected = random.Random(name + file.name), file.read_bytes(), result()
    outcomes: Counter[str] = Counter()
    for _ in range(tries):
        damaged = harm(whole, luck)
        file.write_bytes(damaged)
        try:
            assert result() == expected, f"{file.name}: another result without a word"
            outcomes["same result"] += 1
        except UserError as error:
            assert "\n" not in str(error)
            outcomes["named"] += 1
        file.write_bytes(whole)
    assert result() == expected and outcomes["named"] + outcomes["same result"] == tries
    if "TRIES" in os.environ:
        print(f"\n{name:>20} {file.name:<24} {dict(outcomes)}")
    return outcomes


def plan_tracked() -> Run:
    run = plan_run(Dataset.from_environments(DATA), "DAT", ["c"], steps=7, evaluate_every=2, hparams={"batch_size": 4})
    return replace(run, track=("penalties",))


def trained(run: Run, out: Path, **settings: Any) -> Any:
    return train(run, out, device="cpu", environments=DATA, **settings)


def weights(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def content(folder: Path, run: Run) -> Any:
    """All that a run's folder says; what is skipped with a note is an error here."""
    found, run_folder = collect(folder), RunFolder(folder, run)
    if found.notes or not found.runs:
        raise UserError(" ".join(found.notes) or "no run is found")
    records, status = RunFolder.at(run_folder.path).read()
    if (short := run_folder.status()) != status:
        raise UserError(short.reason if short else "the run has not ended")
    curves = [(curve.run.id, curve.steps, [v.tolist() for v in curve.accuracy.values()]) for curve in found.curves]
    penalties, model = run_folder.read_penalties(), weights(run_folder.load_model())
    return curves, [replace(r, seconds=0) for r in records], status, penalties, model, run_folder.read_audit()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, run = tmp_path_factory.mktemp("finished"), plan_tracked()
    trained(run, out)
    RunFolder(out, run).save_audit({"sentence": "It follows colour.", "accuracy": {"a": 0.5}})
    return out


@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "penalties.jsonl", "model.safetensors", "audit.json"])
def test_a_finished_run(finished: Path, tmp_path: Path, name: str) -> None:
    out, run = Path(shutil.copytree(finished, tmp_path / "runs")), plan_tracked()
    assert judge("finished run", out / run.id / name, partial(content, out, run))["named"]


@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "penalties.jsonl"])
def test_a_damaged_finished_run_is_trained_again(finished: Path, tmp_path: Path, name: str) -> None:
    run, expected, luck = plan_tracked(), content(finished, plan_tracked()), random.Random(name)
    for number in range(max(3, TRIES // 4)):
        out = Path(shutil.copytree(finished, tmp_path / str(number)))
        file = out / run.id / name
        file.write_bytes(harm(file.read_bytes(), luck))
        trained(run, out)
        assert content(out, run)[:5] == expected[:5]


@pytest.mark.parametrize("name", ["checkpoint.pt", "records.jsonl", "penalties.jsonl", "run.json"])
def test_an_unfinished_run_ends_as_if_it_had_not_been_damaged(finished: Path, tmp_path: Path, name: str) -> None:
    run, expected, luck = plan_tracked(), content(finished, plan_tracked()), random.Random(name)
    with pytest.raises(Interrupted):
        trained(run, tmp_path / "part", progress=at_step(3, lambda: signal.raise_signal(signal.SIGINT)))
    restarted = 0
    for number in range(max(3, TRIES // 2)):
        out = Path(shutil.copytree(tmp_path / "part", tmp_path / str(number)))
        file = out / run.id / name
        file.write_bytes(harm(file.read_bytes(), luck))
        steps: list[int] = []
        trained(run, out, progress=steps.append)
        restarted += steps[0] == 0
        assert content(out, run)[:5] == expected[:5], "the records, status, penalties and weights of one that was whole"
        shutil.rmtree(out)
    if "TRIES" in os.environ:
        print(f"\n      unfinished run {name:<24} restarted {restarted} of {number + 1}, all ended alike")
    assert name == "run.json" or restarted


def sweep_plan() -> Any:
    return plan_sweep("BackgroundDigits", ["ERM", "DAT"], draws=2, trials=2, steps=5, ranges={"eps": (-1.0, 1.0)})


@pytest.mark.parametrize("suffix", [".json", ".runs.json.gz"])
def test_a_plan(tmp_path: Path, suffix: str) -> None:
    plan = sweep_plan()
    plan.save(tmp_path)

    def result() -> list[str]:
        found = list(saved_plans(tmp_path))
        return [found[0].id, *(run.id for run in found[0].runs())]

    judge("plan", tmp_path / "plans" / f"{plan.id}{suffix}", result)


def test_published_records(finished: Path, tmp_path: Path) -> None:
    publish(finished, tmp_path)
    assert judge("published", tmp_path / "runs.jsonl.gz", partial(read_published, tmp_path))["named"]
    (tmp_path / "runs.jsonl.gz").write_bytes(b"")
    with pytest.raises(UserError, match=r"runs\.jsonl\.gz"):
        unpack(tmp_path, tmp_path / "again")


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "reference.safetensors"])
def test_a_model(tmp_path: Path, name: str) -> None:
    model = dw.fit(DATA, "DAT", steps=2, hparams={"batch_size": 4}, device="cpu")
    x = np.random.default_rng(0).normal(size=(4, DATA.shape[0]))

    def result() -> Any:
        loaded = dw.load_model(tmp_path, device="cpu")
        return loaded.predict_proba(x).tobytes(), loaded.card, weights(dict(loaded.reference))

    model.save(tmp_path)
    assert judge("model", tmp_path / name, result)["named"]


@pytest.mark.parametrize("name", ["images.bin", "record.json"])
def test_the_decode_cache(tmp_path: Path, name: str) -> None:
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        picture(number).save(file)
    decode(files, 8, cache=tmp_path / "cache")
    (entry,) = (path.parent for path in (tmp_path / "cache").rglob("images.bin"))
    outcomes = judge("decode cache", entry / name, lambda: decode(files, 8, cache=tmp_path / "cache").images.tolist())
    assert outcomes["same result"] == TRIES, "it is decoded again"


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "environments.json"])
def test_saved_data(tmp_path: Path, name: str) -> None:
    save_environments(DATA, tmp_path)

    def result() -> Any:
        data: Environments = load_environments(tmp_path)
        values = [part.numpy().tobytes() for part in (data.images, data.labels, data.mean, data.std)]
        return values, data.sizes, data.classes

    judge("saved data", tmp_path / name, result)
