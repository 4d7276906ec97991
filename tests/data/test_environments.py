"""Environments: their splits, their batches, and arrays of one's own."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.batches import Batches
from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments

COLOURED, BACKGROUND = "ColoredMNIST-embedded", "BackgroundDigits"


# splits


@pytest.fixture(scope="module")
def uneven() -> Environments:
    """Three small domains of different sizes; an image's value and its label tell its domain."""
    sizes = {"a": 7, "b": 40, "c": 101}
    return Environments.from_arrays(
        {
            name: (np.full((n, 1, 2, 2), place, np.uint8), np.full(n, place))
            for place, (name, n) in enumerate(sizes.items())
        },
        name="uneven",
    )


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("trial", [0, 1])
def test_splits_part_each_domain(uneven: Environments, name: str, trial: int) -> None:
    split, rows = uneven.split(name, trial), uneven.rows(name)
    assert len(split["out"]) == int(0.2 * len(rows))
    assert torch.equal(torch.cat([split["in"], split["out"]]).sort().values, rows)
    assert not torch.equal(torch.cat([split["out"], split["in"]]), rows), "shuffled"


def test_splits_depend_on_trial_and_domain_only() -> None:
    data = DATASETS[BACKGROUND].load()
    first = data.split("scene1", 0)["out"]
    assert torch.equal(first, data.split("scene1", 0)["out"])
    assert set(first.tolist()) != set(data.split("scene1", 1)["out"].tolist())
    assert set(first.tolist()) != set((data.split("scene2", 0)["out"] - 1250).tolist())


def test_held_out_groups_keep_the_share_of_every_class() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(400), 5)
    labels = generator.choice(3, 400, p=[0.7, 0.2, 0.1]).repeat(5)  # every group has one class
    made = Environments.from_arrays({"a": (np.zeros((2000, 1, 1, 1), np.uint8), labels)})
    split = replace(made, groups=torch.from_numpy(groups)).split("a", 0)
    for label in range(3):
        assert abs(int((labels[split["out"]] == label).sum()) - 0.2 * (labels == label).sum()) <= 5


def test_given_splits_are_kept() -> None:
    made = Environments.from_arrays({"a": (np.zeros((10, 1, 1, 1), np.uint8), np.arange(10) % 2)})
    validation = torch.arange(10) >= 7
    split = replace(made, held_out=validation).split("a", 3)
    assert sorted(split["out"].tolist()) == [7, 8, 9]
    assert len(replace(made, held_out=validation).split("a", 3, held_out=0)["in"]) == 10
    with pytest.raises(UserError, match="all 10 images are given as validation"):
        replace(made, held_out=torch.ones(10, dtype=torch.bool)).split("a", 0)


def test_data_and_splits_are_the_same_in_another_process() -> None:
    script = (
        "import hashlib; from domainwise.data.catalogue import DATASETS\n"
        f"data = DATASETS[{COLOURED!r}].load()\n"
        "print(hashlib.sha256(data.images.numpy().tobytes() + data.labels.numpy().tobytes()).hexdigest())\n"
        "print([data.split(d, 3)['out'][:5].tolist() for d in data.domains])"
    )
    elsewhere = subprocess.check_output(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": "77"}, text=True
    )
    data = DATASETS[COLOURED].load()
    digest = hashlib.sha256(data.images.numpy().tobytes() + data.labels.numpy().tobytes()).hexdigest()
    assert elsewhere.splitlines() == [digest, str([data.split(d, 3)["out"][:5].tolist() for d in data.domains])]


# own arrays

IMAGES, LABELS = np.zeros((10, 1, 4, 4), np.uint8), np.arange(10) % 2


@pytest.mark.parametrize(
    ("domains", "facts", "complaint"),
    [
        ({}, {}, "no domains"),
        ({"a": (IMAGES / 255, LABELS)}, {}, "own/a.*uint8.*float64"),
        ({"a": (IMAGES[:, 0], LABELS)}, {}, r"own/a.*\(10, 4, 4\)"),
        ({"a": (IMAGES, LABELS[:9])}, {}, r"own/a.*10 images.*\(9,\)"),
        ({"a": (IMAGES, LABELS[:, None])}, {}, r"own/a.*\(10, 1\)"),
        ({"a": (IMAGES, LABELS), "b": (IMAGES[..., :3], LABELS)}, {}, "differ in image shape"),
        ({"a": (IMAGES, LABELS - 1)}, {}, "labels run from -1 to 0"),
        ({"a": (IMAGES, LABELS)}, {"classes": ["only"]}, "labels run from 0 to 1 for 1 classes"),
        ({"a": (IMAGES[:0], LABELS[:0])}, {}, "own/a.*0 images"),
        ({"a": (IMAGES, LABELS), "b": (IMAGES, LABELS + 0.4)}, {}, "own/b: labels must be whole numbers.*not 0.4"),
        ({"a": (IMAGES, LABELS * np.nan)}, {}, "own/a: labels must be whole numbers.*not nan"),
        ({"a": (IMAGES, [np.inf] * 10)}, {}, "own/a: labels must be whole numbers"),
        ({"a": (IMAGES, ["cat", "dog"] * 5)}, {}, "own/a: labels .* not 'cat': number the classes, .* by classes="),
        ({"a": (IMAGES, [[0]] * 9 + [[0, 1]])}, {}, "own/a: labels must be one whole number per sample"),
        ({"a": (IMAGES, LABELS)}, {"mean": [0.5] * 3}, r"own: mean is \[0.5, 0.5, 0.5\]; the images have 1 channels"),
        ({"a": (IMAGES, LABELS)}, {"std": [0.5, 0.5]}, r"own: std is \[0.5, 0.5\]; the images have 1 channels"),
        ({"a": (IMAGES, LABELS)}, {"mean": 0.5}, "own: mean is 0.5; the images have 1 channels"),
        ({"a": (IMAGES, LABELS)}, {"mean": [float("nan")]}, r"own: mean is \[nan\]; .* one finite number"),
        ({"a": (IMAGES, LABELS)}, {"mean": ["x"]}, r"own: mean must be numbers, not \['x'\]"),
        ({"a": (IMAGES, LABELS)}, {"std": [0.0]}, "own: std has 0; it divides"),
        ({"a": (IMAGES[:, 0, 0] / 2.0, LABELS)}, {"mean": [0.0] * 4}, "leave out mean and std"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_make_no_environments(
    domains: dict[str, tuple[Any, Any]], facts: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        Environments.from_arrays(domains, name="own", **facts)


def test_the_smallest_domain_has_something_in_both_splits() -> None:
    data = Environments.from_arrays({"a": (IMAGES[:5], LABELS[:5])})
    assert {name: len(rows) for name, rows in data.split("a", 0).items()} == {"out": 1, "in": 4}


@pytest.mark.parametrize(("size", "held_out", "least"), [(1, 0.2, 5), (4, 0.2, 5), (9, 0.1, 10), (3, 0.3, 4)])
def test_a_domain_too_small_to_be_split_is_told_when_it_is(size: int, held_out: float, least: int) -> None:
    data = Environments.from_arrays({"a": (IMAGES[:size], LABELS[:size])}, name="own")
    with pytest.raises(UserError, match=f"^own/a: {size} images; a domain needs at least {least} to be split$"):
        data.split("a", 0, held_out)
    assert len(data.split("a", 0, 0.0)["in"]) == size


def test_lists_and_tensors_are_arrays_too() -> None:
    data = Environments.from_arrays({"a": (torch.from_numpy(IMAGES), LABELS.tolist()), "b": (IMAGES, LABELS)})
    assert data.sizes == {"a": 10, "b": 10} and data.classes == ("0", "1") and data.labels.dtype == torch.int64
    assert repr(data) == "<Environments arrays: 20 of 1x4x4, 2 classes; a 10, b 10>", "a line, not every pixel"


def test_whole_numbers_of_any_kind_are_labels_and_arrays_are_normalisation() -> None:
    plain = Environments.from_arrays({"a": (IMAGES, LABELS)}, mean=[0.1], std=[0.3])
    for kind in (np.float64, np.uint8, bool, torch.Tensor):
        labels = torch.from_numpy(LABELS) if kind is torch.Tensor else LABELS.astype(kind)
        data = Environments.from_arrays({"a": (IMAGES, labels)}, mean=np.array([0.1]), std=torch.tensor([0.3]))  # type: ignore[arg-type]
        assert torch.equal(data.labels, plain.labels) and data.labels.dtype == torch.int64
        assert torch.equal(data.mean, plain.mean) and torch.equal(data.std, plain.std)


def test_normalisation_and_legal_range() -> None:
    data = Environments.from_arrays(
        {"a": (np.stack([np.zeros((2, 3, 3)), np.full((2, 3, 3), 255)] * 3).astype(np.uint8), [0] * 6)},
        mean=[0.5, 0.25],
        std=[0.5, 0.1],
    )
    seen = data.normalise(data.images, torch.float64)
    assert data.low.flatten().tolist() == pytest.approx([-1, -2.5])
    assert data.high.flatten().tolist() == pytest.approx([1, 7.5])
    assert seen.amin((0, 2, 3)).tolist() == pytest.approx(data.low.flatten().tolist())
    assert seen.amax((0, 2, 3)).tolist() == pytest.approx(data.high.flatten().tolist())


def test_unknown_domain_names_the_nearest(uneven: Environments) -> None:
    with pytest.raises(UserError, match="scene2"):
        DATASETS[BACKGROUND].load().rows("scen2")
    with pytest.raises(UserError, match="known: a, b, c"):
        uneven.rows("zzz")


# batches


def numbered(sizes: dict[str, int]) -> Environments:
    """Images that carry their own row number, in two pixels."""
    numbers = iter(range(sum(sizes.values())))
    arrays = {}
    for name, n in sizes.items():
        rows = np.array([next(numbers) for _ in range(n)])
        arrays[name] = (np.stack([rows // 256, rows % 256], -1).astype(np.uint8).reshape(n, 1, 1, 2), rows % 10)
    return Environments.from_arrays(arrays)


def drawn_rows(batch: tuple[Tensor, Tensor]) -> Tensor:
    """[E, B]."""
    pixels = (batch[0] * 255).round().long()[:, :, 0, 0]
    return pixels[..., 0] * 256 + pixels[..., 1]


def batches_of(data: Environments, names: list[str], size: int, seed: int = 0) -> Batches:
    rows = [data.split(name, 0)["in"] for name in names]
    return Batches(data, rows, size, torch.Generator().manual_seed(seed))


SIZES = {"a": 30, "b": 5, "c": 400, "unseen": 20}


def test_only_in_rows_of_training_domains_are_drawn() -> None:
    """All others are poisoned: label 9 and white. Every row that may be drawn is, sooner or later."""
    data, names = numbered(SIZES), ["c", "a", "b"]
    allowed = [data.split(name, 0)["in"] for name in names]
    poisoned = torch.ones(len(data.labels), dtype=torch.bool)
    poisoned[torch.cat(allowed)] = False
    data.labels.remainder_(9)
    data.images[poisoned], data.labels[poisoned] = 255, 9
    batches = batches_of(data, names, 50)
    draws = [batches.draw() for _ in range(200)]
    assert all((y < 9).all() and (x < 1).any(-1).all() for x, y in draws)
    for place, rows in enumerate(allowed):
        seen = torch.cat([drawn_rows(draw)[place] for draw in draws])
        assert set(seen.tolist()) == set(rows.tolist()), "domain by domain, in the order given"


def test_labels_come_with_their_images() -> None:
    data = numbered(SIZES)
    x, y = batches_of(data, ["a", "c"], 64).draw()
    assert x.shape == (2, 64, 1, 1, 2) and x.dtype == torch.float32 and y.shape == (2, 64)
    assert torch.equal(drawn_rows((x, y)) % 10, y)


def test_rows_are_drawn_uniformly_whatever_the_size_of_their_domain() -> None:
    data, names, draws = numbered(SIZES), ["a", "b", "c"], 40
    batches = batches_of(data, names, 2000)
    rows = torch.cat([drawn_rows(batches.draw()) for _ in range(draws)], 1)
    for name, drawn in zip(names, rows, strict=True):
        own = data.split(name, 0)["in"]
        counts = drawn.bincount(minlength=len(data.labels))[own].double()
        expected = 2000 * draws / len(own)
        assert counts.sum() == 2000 * draws
        chi_squared = float(((counts - expected) ** 2 / expected).sum())
        free = len(own) - 1
        assert chi_squared < free + 5 * (2 * free) ** 0.5 + 5


def test_batches_are_reproducible_and_never_repeat() -> None:
    data = numbered(SIZES)
    one, same, other = (batches_of(data, ["a", "c"], 16, seed) for seed in (1, 1, 2))
    first = one.draw()
    assert torch.equal(drawn_rows(first), drawn_rows(same.draw()))
    assert not torch.equal(drawn_rows(first), drawn_rows(other.draw()))
    assert not torch.equal(drawn_rows(first), drawn_rows(one.draw()))


def test_drawing_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    batches_of(numbered(SIZES), ["a"], 16).draw()
    assert torch.equal(before, torch.get_rng_state())
