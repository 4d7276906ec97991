"""Saved models: identical after the round trip; damaged, foreign or newer ones are refused in one line."""

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import domainwise as dw
from domainwise.algorithms import ALGORITHMS
from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.parsing import checksum
from domainwise.models.card import Card
from domainwise.models.folder import CARD, REFERENCE, WEIGHTS
from domainwise.models.model import check_sizes
from domainwise.protocol.spaces import at_scale

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), np.uint8)


def noise(n: int = 20) -> dw.Environments:
    draw = np.random.default_rng(1)
    domains = {f"домен {d}": (draw.integers(0, 256, (n, 3, 8, 8), np.uint8), np.arange(n) % 2) for d in range(2)}
    return dw.Environments.from_arrays(domains, name="noise", classes=("a b", "<ü>"))


@pytest.fixture(scope="module")
def model() -> dw.Model:
    return dw.fit(noise(), "DAT", network="small-cnn", steps=2, hparams={"batch_size": 4}, device="cpu")


@pytest.fixture
def saved(model: dw.Model, tmp_path: Path) -> Path:
    return model.save(tmp_path / "model")


def change(folder: Path, edit: Callable[[dict[str, Any]], None], honest: bool = True) -> None:
    """Edits model.json, by default with a checksum that fits: what only a program would do."""
    content = json.loads((folder / CARD).read_text())
    edit(content)
    if honest:
        content.pop("checksum", None)
        content["checksum"] = checksum(content)
    (folder / CARD).write_text(json.dumps(content))


def test_the_round_trip_changes_no_bit(model: dw.Model, saved: Path) -> None:
    loaded = dw.load_model(saved, device="cpu")
    assert loaded.card == model.card
    assert loaded.predict_proba(IMAGES).tobytes() == model.predict_proba(IMAGES).tobytes()
    assert list(loaded.reference) == list(model.reference) == ["домен 0", "домен 1"]
    assert all(torch.equal(loaded.reference[name], model.reference[name]) for name in model.reference)
    again = loaded.save(saved.parent / "again")
    for name in (CARD, WEIGHTS, REFERENCE):
        assert (again / name).read_bytes() == (saved / name).read_bytes()


def test_the_round_trip_changes_no_bit_of_a_model_of_vectors(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    domains = {d: (draw.normal(size=(20, 3)) / 3, np.arange(20) % 2) for d in "ab"}
    model = dw.fit(dw.Environments.from_arrays(domains), "ERM", steps=2, hparams={"batch_size": 4}, device="cpu")
    x = draw.normal(size=(9, 3))
    assert (
        dw.load_model(model.save(tmp_path), device="cpu").predict_proba(x).tobytes() == model.predict_proba(x).tobytes()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, 5) for name in ("weights", "unseen", "run", "made_of", "last_layer", "steps_chosen_by")],
        *[("seconds", value) for value in ("x", None, -1)],
        *[("weights", value) for value in ({}, {"step": "x", "selected": True}, {"step": 1, "selected": True, "a": 1})],
        ("weights", {"step": 1, "selected": True, "averaged": {"average": "sma"}}),
        *[("unseen", value) for value in ("x", {"mean": 1.0}, [1])],
        *[("made_of", {"a": 1}), ("last_layer", {"words": 5}), ("run", {"steps": "x"})],
    ],
)
def test_wrong_values_of_the_training_are_refused(saved: Path, name: str, value: object) -> None:
    change(saved, lambda card: card["training"].update({name: value}))
    with pytest.raises(UserError, match=f'"training.{name}.*: restore it'):
        dw.load_model(saved, device="cpu")


@pytest.mark.parametrize("write", ["the card", "the replacement"])
def test_saving_again_and_being_interrupted_leaves_one_whole_model(
    model: dw.Model, saved: Path, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {name: tensor + 1 for name, tensor in model.algorithm.state_dict().items()}
    other = dw.Model(model.card, weights, model.reference, "cpu", model.trained_on)
    known, calls = files.write, []

    def interrupted_at_the_card(path: Path, data: bytes) -> None:
        if path.name == CARD:
            raise KeyboardInterrupt
        known(path, data)

    def interrupted_at_the_end(_: Path) -> None:
        calls.append("at the start or the end")
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        if write == "the card":
            patched.setattr(files, "write", interrupted_at_the_card)
        else:
            patched.setattr(files, "complete_replacement", interrupted_at_the_end)
        other.save(saved)
    whole = model if write == "the card" else other
    assert dw.load_model(saved, device="cpu").predict_proba(IMAGES).tobytes() == whole.predict_proba(IMAGES).tobytes()
    assert not list(saved.glob(".replacement*"))


@pytest.mark.slow
def test_another_process_gets_the_same_bits(model: dw.Model, saved: Path) -> None:
    np.save(saved / "x.npy", IMAGES)
    code = (
        "import sys, numpy as np, torch, domainwise as dw; torch.set_num_threads(1);"
        "print(dw.load_model(sys.argv[1], device='cpu').predict_proba(np.load(sys.argv[1] + '/x.npy')).tobytes().hex())"
    )
    told = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == model.predict_proba(IMAGES).tobytes().hex()


def test_what_the_card_says(saved: Path) -> None:
    card = json.loads((saved / CARD).read_text())
    assert card["format"] == 1 and card["classes"] == ["a b", "<ü>"] and card["shape"] == [3, 8, 8]
    assert card["mean"] == [0, 0, 0] and card["std"] == [1, 1, 1]
    assert card["algorithm"] == "DAT" and card["network"] == "small-cnn" and card["hparams"]["batch_size"] == 4
    assert card["domains"] == {"домен 0": 16, "домен 1": 16}
    assert card["training"]["run"]["steps"] == 2 and card["training"]["accuracy"].keys() == card["domains"].keys()
    assert card["versions"].keys() == {"domainwise", "torch", "python"}


@pytest.mark.parametrize("name", [CARD, WEIGHTS, REFERENCE])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        dw.load_model(saved)


def test_no_folder_and_a_file_in_its_place(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(UserError, match=r"is no model \(it has no model.json\)"):
            dw.load_model(path)
    (tmp_path / CARD).mkdir()
    with pytest.raises(UserError, match="not a regular file"):
        dw.load_model(tmp_path)


@pytest.mark.parametrize(
    ("format", "advice"),
    [(2, "update domainwise"), (99, "update domainwise"), (0, "save"), ("1", "save"), (True, "save")],
)
def test_another_format_is_refused_before_anything_else(saved: Path, format: object, advice: str) -> None:
    change(saved, lambda card: card.update(format=format, future=[1, 2]), honest=False)
    with pytest.raises(UserError, match=f"is of format {format!r}, this version reads format 1: {advice}"):
        dw.load_model(saved)


def test_a_card_changed_by_hand_is_refused(saved: Path) -> None:
    change(saved, lambda card: card.update(classes=["<ü>", "a b"]), honest=False)
    with pytest.raises(UserError, match="damaged or was changed by hand"):
        dw.load_model(saved)


def test_the_weights_of_another_model_are_refused(model: dw.Model, saved: Path) -> None:
    other = dw.fit(noise(), "ERM", steps=1, hparams={"batch_size": 4}, device="cpu").save(saved.parent / "other")
    (saved / WEIGHTS).write_bytes((other / WEIGHTS).read_bytes())
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or belongs to another model"):
        dw.load_model(saved)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"algorithm": "Magic"}, "unknown algorithm 'Magic'"),
        ({"algorithm": "ERM"}, "unknown hyper-parameter of ERM"),
        ({"network": "mnist-cnn"}, "do(es)? not fit"),
        ({"shape": [3, 8, 16]}, "do not fit the card: .* instead of"),
        ({"shape": [3, 8]}, "an input of shape"),
        ({"shape": [3, 1 << 20, 1 << 20]}, "an input of shape"),
        ({"classes": ["a", "b", "c"]}, "do not fit the card: .* instead of"),
        ({"classes": []}, "no classes"),
        ({"classes": "ab"}, '"classes" must be a list'),
        ({"mean": [0.0]}, "mean and std"),
        ({"std": [1.0, 0.0, 1.0]}, "mean and std"),
        ({"mean": [0.0, None, 0.0]}, '"mean" must be a finite number, not null'),
        ({"domains": {"a": "many"}}, '"domains.a" must be a whole number from 1'),
        ({"domains": {}}, "no domains"),
        ({"hparams": {"lr": [1]}}, '"hparams.lr" must be'),
        ({"hparams": {}}, "hyper-parameter lr is missing"),
        ({"spell": 1}, '"spell" is an unknown field'),
    ],
)
def test_a_card_that_describes_no_such_model(saved: Path, edit: dict[str, Any], message: str) -> None:
    change(saved, lambda card: card.update(edit))
    with pytest.raises(UserError, match=message):
        dw.load_model(saved)


def test_absent_fields(saved: Path) -> None:
    change(saved, lambda card: card.pop("network"))
    with pytest.raises(UserError, match="network"):
        dw.load_model(saved)


def test_weights_that_are_no_tensors_are_refused_even_if_their_digest_fits(saved: Path) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(saved / "exploded"),)

    from domainwise.models.card import digest

    evil = pickle.dumps(Bomb())
    (saved / WEIGHTS).write_bytes(evil)
    change(saved, lambda card: card["files"].update({WEIGHTS: digest(evil)}))
    with pytest.raises(UserError, match="is damaged"):
        dw.load_model(saved)
    assert not (saved / "exploded").exists()


def test_fuzzed_files_are_refused_in_one_line(saved: Path) -> None:
    """Cut anywhere, or with bytes flipped anywhere: never a traceback, never a model that is not the one saved."""
    draw = random.Random(0)
    for name in (CARD, WEIGHTS, REFERENCE):
        whole = (saved / name).read_bytes()
        for _ in range(150):
            data = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.3 else whole)
            for _ in range(draw.choice((1, 1, 1, 10)) if len(data) == len(whole) else 0):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            if bytes(data) == whole:
                continue
            (saved / name).write_bytes(data)
            with pytest.raises(UserError) as caught:
                dw.load_model(saved)
            assert "\n" not in str(caught.value) and name in str(caught.value)
        (saved / name).write_bytes(whole)
    assert dw.load_model(saved).classes == ("a b", "<ü>")


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    1e308,
    "",
    "ERM",
    "mlp",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    [3, 8, 8],
    ["a"] * 2,
    -0.5,
]


def test_fuzzed_cards_with_fitting_checksums_are_refused_or_load(model: dw.Model, saved: Path) -> None:
    """Whoever writes a checksum of their own gets a line or a model, never a traceback."""
    draw = random.Random(1)
    whole = (saved / CARD).read_text()
    refused = 0
    for _ in range(150):

        def edit(card: dict[str, Any]) -> None:
            place: Any = card
            while True:
                keys = list(place) if isinstance(place, dict) else list(range(len(place)))
                key = draw.choice(keys)
                if not isinstance(place[key], (dict, list)) or not place[key] or draw.random() < 0.4:
                    break
                place = place[key]
            place[key] = draw.choice(JUNK)

        change(saved, edit)
        try:
            dw.load_model(saved).predict(IMAGES)
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
        (saved / CARD).write_text(whole)
    assert refused > 50


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(UserError, match="nested too deeply"):
        Card.read(b"[" * 100_000, "model.json")


def test_weights_are_plain_safetensors(saved: Path) -> None:
    tensors = safetensors.torch.load_file(saved / WEIGHTS)
    assert "network.classifier.weight" in tensors and "delta" in tensors


def test_domains_may_be_called_anything(tmp_path: Path) -> None:
    names = ("__metadata__", "a/b", "\udcff", "")
    domains = {name: (IMAGES[[0] * 10], np.arange(10) % 2) for name in names}
    model = dw.fit(dw.Environments.from_arrays(domains), "DAT", steps=1, hparams={"batch_size": 4}, device="cpu")
    loaded = dw.load_model(model.save(tmp_path), device="cpu")
    assert tuple(loaded.reference) == loaded.domains == names


def test_a_folder_that_cannot_be_written_to(model: dw.Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        model.save(tmp_path / "file")


@pytest.mark.parametrize(
    "edit",
    [
        {"shape": [1 << 24], "mean": [0.0] * (1 << 10), "std": [1.0] * (1 << 10)},
        {"shape": [3, 2048, 2048]},
        {"network": "mlp", "shape": [3, 2000, 2000]},
        {"classes": [f"class {number}" for number in range(200_000)]},
        {"domains": {f"domain {number}": 5 for number in range(50_000)}, "shape": [3, 256, 256]},
    ],
    ids=["vector", "image", "layer", "classes", "domains"],
)
def test_a_card_that_asks_for_gigabytes_is_refused_before_they_are_taken(saved: Path, edit: dict[str, Any]) -> None:
    change(saved, lambda card: card.update(edit))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as caught:
        dw.load_model(saved, device="cpu")
    assert "\n" not in str(caught.value) and str(saved) in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "kB"


def test_every_algorithm_can_be_sized_without_memory(model: dw.Model) -> None:
    for name, algorithm in ALGORITHMS.items():
        hparams = {key: parameter.default for key, parameter in at_scale(algorithm.space, "small").items()}
        for network in ("small-cnn", "resnet18-scratch"):
            with pytest.raises(UserError, match=r"do not fit the card: .* is missing instead of"):
                check_sizes(replace(model.card, algorithm=name, network=network, hparams=hparams), {})
