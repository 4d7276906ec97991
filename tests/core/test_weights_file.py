"""Weights files: the same tensors again, or an error that names the file."""

import json
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

from domainwise.core.errors import UserError
from domainwise.core.weights_file import KEY, load_weights, save_weights

TENSORS = {
    "network.weight": torch.rand(3, 4, generator=torch.Generator().manual_seed(0)),
    "count": torch.tensor(7),
    "empty": torch.zeros(0, 3),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "ü": torch.arange(5),
}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and a[name].equal(b[name]) for name in a)


@pytest.mark.parametrize("metadata", [None, {"step": "300", "rule": "training-domain"}])
def test_the_round_trip(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path, again = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_weights(path, TENSORS, metadata)
    assert same(load_weights(path), TENSORS)
    save_weights(again, dict(reversed(TENSORS.items())), dict(reversed(metadata.items())) if metadata else None)
    assert again.read_bytes() == path.read_bytes()
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()[KEY]).keys() == {*(metadata or {}), "sha256"}


def test_tensors_that_share_memory_or_need_gradients(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.rand(4, 4))
    save_weights(tmp_path / "w", {"a": weight, "b": weight, "c": weight.T})
    assert torch.equal(load_weights(tmp_path / "w")["c"], weight.detach().T)


def test_any_damage_is_named_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(path, TENSORS, {"step": "3"})
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole[:i] + bytes([byte ^ 1 << bit]) + whole[i + 1 :] for i, byte in enumerate(whole) for bit in (0, 5)]
    named = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            assert same(load_weights(path), TENSORS)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            named += 1
    assert named > 0.9 * len(damaged)


def test_files_of_other_programs_are_read_unchecked(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "w", {"format": "pt"})
    assert same(load_weights(tmp_path / "w"), TENSORS)


@pytest.mark.parametrize("text", ["", "3", "[]", "{}", '{"sha256": 1}', "[" * 100_000])
def test_a_checksum_that_is_none(tmp_path: Path, text: str) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "w", {KEY: text})
    with pytest.raises(UserError, match="checksum does not fit"):
        load_weights(tmp_path / "w")


def test_no_file_and_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="w is missing: train the run again"):
        load_weights(tmp_path / "w", "train the run again")
    with pytest.raises(UserError, match="is no file"):
        load_weights(tmp_path)


def test_bits_are_drawn_everywhere(tmp_path: Path) -> None:
    """Many flips at once, as of a bad disk."""
    path, luck = tmp_path / "w", random.Random(0)
    save_weights(path, TENSORS)
    whole = path.read_bytes()
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(20):
            data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
        path.write_bytes(data)
        with pytest.raises(UserError):
            load_weights(path)
