"""The datasets, their splits and batches, and what happens when files are missing or damaged."""

import gzip
import hashlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from domainwise.data import DATASETS, Environments
from domainwise.data.batches import Batches
from domainwise.data.digits import MNIST_FILES, Digits, embedded_digits, mnist
from domainwise.data.mnist import ANGLES, deal
from domainwise.errors import UserError

COLOURED, ROTATED, BACKGROUND = "ColoredMNIST-embedded", "RotatedMNIST-embedded", "BackgroundDigits"
REAL_MNIST = Path(os.environ.get("DOMAINWISE_DATA", "/nonexistent")).expanduser()
needs_mnist = pytest.mark.skipif(not (REAL_MNIST / "mnist").is_dir(), reason="MNIST is not in $DOMAINWISE_DATA/mnist")


def domain(data: Environments, name: str) -> tuple[Tensor, Tensor]:
    rows = data.rows(name)
    return data.images[rows], data.labels[rows]


def within_binomial(fraction: float, p: float, n: int) -> bool:
    """Four standard deviations: a false alarm in 16,000 (and the data are fixed)."""
    return abs(fraction - p) < 4 * (p * (1 - p) / n) ** 0.5


@cache
def rotations(angle: int) -> dict[bytes, int]:
    """Pillow's rotation of every embedded digit -> the digit's row."""
    images = embedded_digits().images.numpy()
    turned = [Image.fromarray(image).rotate(angle, resample=Image.Resampling.BILINEAR) for image in images]
    return {image.tobytes(): row for row, image in enumerate(turned)}


@cache
def sources(name: str) -> dict[str, Tensor]:
    """domain -> the rows of the embedded digits that its images were made of."""
    data, upright = DATASETS.find(name).load(), rotations(0)
    result = {}
    for place, key in enumerate(data.domains):
        known = rotations(ANGLES[place]) if name == ROTATED else upright
        grey = domain(data, key)[0].amax(1)
        result[key] = torch.tensor([known[image.numpy().tobytes()] for image in grey])
    return result


def test_embedded_digits_are_five_hundred_of_each() -> None:
    digits = embedded_digits()
    assert digits.images.shape == (5000, 28, 28) and digits.images.dtype == torch.uint8
    assert digits.labels.bincount().tolist() == [500] * 10
    assert digits.images.min() == 0 and digits.images.max() == 255


# ColoredMNIST


@pytest.mark.parametrize(("name", "agreement"), [("+90%", 0.9), ("+80%", 0.8), ("-90%", 0.1)])
def test_colours_agree_with_labels(name: str, agreement: float) -> None:
    images, labels = domain(DATASETS.find(COLOURED).load(), name)
    ink = images.flatten(2).amax(2) > 0
    assert (ink.sum(1) == 1).all(), "one channel holds the digit, channel 1 - colour is zero"
    colours = ink[:, 1].long()
    assert within_binomial((colours == labels).float().mean().item(), agreement, len(labels))
    for label in (0, 1):
        chosen = labels == label
        fraction = (colours[chosen] == label).float().mean().item()
        assert within_binomial(fraction, agreement, int(chosen.sum())), "alike for both labels"


def test_a_quarter_of_all_labels_is_flipped() -> None:
    data, digits = DATASETS.find(COLOURED).load(), embedded_digits()
    below_five = digits.labels[torch.cat(list(sources(COLOURED).values()))] < 5
    assert within_binomial((data.labels != below_five).float().mean().item(), 0.25, 5000)


@pytest.mark.parametrize("name", ["+90%", "+80%", "-90%"])
def test_label_noise_is_alike_for_both_labels_of_every_domain(name: str) -> None:
    labels = domain(DATASETS.find(COLOURED).load(), name)[1]
    below_five = (embedded_digits().labels[sources(COLOURED)[name]] < 5).long()
    for side in (0, 1):
        chosen = below_five == side
        assert within_binomial((labels != below_five)[chosen].float().mean().item(), 0.25, int(chosen.sum()))


def test_colour_noise_and_label_noise_are_independent() -> None:
    images, labels = domain(DATASETS.find(COLOURED).load(), "+90%")
    below_five = (embedded_digits().labels[sources(COLOURED)["+90%"]] < 5).long()
    disagrees = (images.flatten(2).amax(2)[:, 1] > 0).long() != labels
    flipped = labels != below_five
    assert within_binomial(disagrees[flipped].float().mean().item(), 0.1, int(flipped.sum()))


def test_coloured_digits_keep_their_grey_values() -> None:
    data = DATASETS.find(COLOURED).load()
    assert data.images.max() == 255 and data.shape == (2, 28, 28) and len(data.classes) == 2
    assert data.normalise(data.images[:100]).max() <= 1


# RotatedMNIST


@pytest.mark.parametrize("angle", ANGLES)
def test_rotated_digits_are_pillows(angle: int) -> None:
    images, labels = domain(DATASETS.find(ROTATED).load(), str(angle))
    known = rotations(angle)
    rows = torch.tensor([known[image.numpy().tobytes()] for image in images[:, 0]])
    assert torch.equal(embedded_digits().labels[rows], labels)


def test_rotation_domains_are_named_by_their_angle_and_the_first_is_upright() -> None:
    data = DATASETS.find(ROTATED).load()
    assert data.domains == ("0", "15", "30", "45", "60", "75")
    upright = {image.numpy().tobytes() for image in embedded_digits().images}
    assert all(image.numpy().tobytes() in upright for image in domain(data, "0")[0])
    assert not any(image.numpy().tobytes() in upright for image in domain(data, "15")[0])


# how digits are dealt


@pytest.mark.parametrize("name", [COLOURED, ROTATED])
def test_every_digit_lies_in_exactly_one_domain(name: str) -> None:
    rows = torch.cat(list(sources(name).values()))
    assert torch.equal(rows.sort().values, torch.arange(5000))


@pytest.mark.parametrize("domains", [1, 3, 6, 7])
def test_digits_are_dealt_like_cards(domains: int) -> None:
    """Shuffled once; domain i takes [i::n], so that taking one of each in turn restores the shuffle."""
    numbers = torch.arange(100)
    parts = deal(Digits(numbers.view(-1, 1, 1).expand(-1, 28, 28), numbers), "anything", domains)
    assert [len(part.labels) for part in parts] == [len(range(i, 100, domains)) for i in range(domains)]
    shuffled = torch.empty_like(numbers)
    for i, part in enumerate(parts):
        shuffled[i::domains] = part.labels
        assert torch.equal(part.images[:, 0, 0], part.labels), "images stay with their labels"
    assert torch.equal(shuffled.sort().values, numbers) and not torch.equal(shuffled, numbers)
    assert torch.equal(shuffled, deal(Digits(numbers, numbers), "anything", 1)[0].labels), "one shuffle for any n"
    assert not torch.equal(shuffled, deal(Digits(numbers, numbers), "another", 1)[0].labels)


# BackgroundDigits


@cache
def backgrounds() -> Tensor:
    """[domain, 3, 28, 28]: ink only ever brightens, so the darkest value of a pixel is its background."""
    data = DATASETS.find(BACKGROUND).load()
    return torch.stack([domain(data, name)[0].amin(0) for name in data.domains]).float()


def test_pixels_without_ink_show_the_domains_background() -> None:
    data = DATASETS.find(BACKGROUND).load()
    parts = deal(embedded_digits(), BACKGROUND, 4)
    for name, part, background in zip(data.domains, parts, backgrounds(), strict=True):
        images, labels = domain(data, name)
        bare = (part.images == 0)[:, None].expand_as(images)
        assert torch.equal(images[bare].float(), background.expand_as(images)[bare])
        assert torch.equal(labels, part.labels)


def test_digits_are_pasted_over_the_background() -> None:
    data = DATASETS.find(BACKGROUND).load()
    for name, part, background in zip(data.domains, deal(embedded_digits(), BACKGROUND, 4), backgrounds(), strict=True):
        ink = part.images[:, None] / 255
        expected = 255 * ink + (1 - ink) * background
        assert (domain(data, name)[0] - expected).abs().max() <= 1, "up to rounding"


def test_backgrounds_are_smooth_coloured_dark_and_different() -> None:
    every = backgrounds()
    assert every.max() <= round(0.8 * 255)
    assert (every.diff(dim=2).abs().max() < 50) and (every.diff(dim=3).abs().max() < 50), "no hard edges"
    assert (every.amax((2, 3)) - every.amin((2, 3))).min() > 30, "not flat"
    for i, one in enumerate(every):
        assert (one[0] - one[1]).abs().mean() > 10, "not grey"
        for other in every[:i]:
            assert (one - other).abs().mean() > 20


def test_every_scene_shows_every_digit() -> None:
    data = DATASETS.find(BACKGROUND).load()
    assert data.shape == (3, 28, 28) and list(data.sizes.values()) == [1250] * 4
    for name in data.domains:
        assert domain(data, name)[1].bincount(minlength=10).min() > 80


@pytest.mark.parametrize("name", [BACKGROUND, COLOURED, ROTATED])
def test_registered_facts_match_the_data(name: str) -> None:
    known, data = DATASETS.find(name), DATASETS.find(name).load()
    facts = (data.name, data.domains, data.shape, data.classes)
    assert facts == (name, known.domains, known.shape, known.classes)


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
    data = DATASETS.find(BACKGROUND).load()
    first = data.split("scene1", 0)["out"]
    assert torch.equal(first, data.split("scene1", 0)["out"])
    assert set(first.tolist()) != set(data.split("scene1", 1)["out"].tolist())
    assert set(first.tolist()) != set((data.split("scene2", 0)["out"] - 1250).tolist())


def test_data_and_splits_are_the_same_in_another_process() -> None:
    script = (
        "import hashlib; from domainwise.data import DATASETS\n"
        f"data = DATASETS.find({COLOURED!r}).load()\n"
        "print(hashlib.sha256(data.images.numpy().tobytes() + data.labels.numpy().tobytes()).hexdigest())\n"
        "print([data.split(d, 3)['out'][:5].tolist() for d in data.domains])"
    )
    elsewhere = subprocess.check_output(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": "77"}, text=True
    )
    data = DATASETS.find(COLOURED).load()
    digest = hashlib.sha256(data.images.numpy().tobytes() + data.labels.numpy().tobytes()).hexdigest()
    assert elsewhere.splitlines() == [digest, str([data.split(d, 3)["out"][:5].tolist() for d in data.domains])]


# IDX files


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def small_mnist(root: Path, pack: Callable[[bytes], bytes] = bytes, suffix: str = "", folder: str = "mnist") -> Path:
    """The first 50 and the next 20 embedded digits as MNIST's four files; returns their folder."""
    digits = embedded_digits()
    images, labels = digits.images.numpy(), digits.labels.numpy().astype(np.uint8)
    place = root / folder
    place.mkdir(parents=True)
    for name, array in zip(MNIST_FILES, (images[:50], labels[:50], images[50:70], labels[50:70]), strict=True):
        (place / f"{name}{suffix}").write_bytes(pack(idx(array)))
    return place


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")], ids=["plain", "gzip"])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_mnist_is_read_in_order(tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str, folder: str) -> None:
    small_mnist(tmp_path, pack, suffix, folder)
    digits = mnist(tmp_path)
    assert torch.equal(digits.images, embedded_digits().images[:70])
    assert torch.equal(digits.labels, embedded_digits().labels[:70]) and digits.labels.dtype == torch.int64


@pytest.mark.parametrize("name", ["ColoredMNIST", "RotatedMNIST"])
def test_datasets_are_built_of_files(tmp_path: Path, name: str) -> None:
    small_mnist(tmp_path)
    data = DATASETS.find(name).load(tmp_path)
    assert data.name == name and len(data.labels) == 70
    assert max(data.sizes.values()) - min(data.sizes.values()) <= 1


def test_missing_files_are_named_with_both_ways_to_get_them(tmp_path: Path) -> None:
    folder = small_mnist(tmp_path)
    for name in MNIST_FILES[1:3]:
        (folder / name).unlink()
    with pytest.raises(UserError) as caught:
        mnist(tmp_path)
    message = str(caught.value)
    for part in (str(folder), *MNIST_FILES[1:3], "https://", "--data-root", "-embedded"):
        assert part in message
    assert MNIST_FILES[0] not in message, "only what is missing"
    assert "\n" not in message


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "mnist"))):
        DATASETS.find("ColoredMNIST").load(tmp_path)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut in its header": lambda data: data[:6],
    "cut in its data": lambda data: data[:-1],
    "too long": lambda data: data + b"\0",
    "not IDX": lambda data: b"<html>404 Not Found</html>" + data,
    "not bytes": lambda data: data[:2] + b"\x0d" + data[3:],
    "negative size": lambda data: data[:4] + struct.pack(">i", -1) + data[8:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", MNIST_FILES[:2])
def test_damaged_files_are_named(tmp_path: Path, damage: str, name: str) -> None:
    file = small_mnist(tmp_path) / name
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(UserError, match=re.escape(str(file))):
        mnist(tmp_path)


GZIP_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "not gzip": lambda data: b"plain" + data,
    "wrong checksum": lambda data: data[:-6] + b"wrong!",
}


@pytest.mark.parametrize("damage", GZIP_DAMAGES)
def test_damaged_gzip_files_are_named(tmp_path: Path, damage: str) -> None:
    file = small_mnist(tmp_path, gzip.compress, ".gz") / f"{MNIST_FILES[2]}.gz"
    file.write_bytes(GZIP_DAMAGES[damage](file.read_bytes()))
    with pytest.raises(UserError, match=re.escape(str(file))):
        mnist(tmp_path)


def test_files_that_disagree_in_number_are_refused(tmp_path: Path) -> None:
    folder = small_mnist(tmp_path)
    (folder / MNIST_FILES[1]).write_bytes(idx(np.zeros(49, np.uint8)))
    with pytest.raises(UserError, match=re.escape(str(folder))):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        (MNIST_FILES[0], np.zeros(50, np.uint8)),
        (MNIST_FILES[1], np.zeros((50, 28, 28), np.uint8)),
        (MNIST_FILES[0], np.zeros((50, 20, 20), np.uint8)),
        (MNIST_FILES[1], np.full(50, 10, np.uint8)),
    ],
    ids=["labels as images", "images as labels", "small images", "label 10"],
)
def test_sound_idx_files_that_are_not_mnist_are_named(tmp_path: Path, name: str, array: np.ndarray) -> None:
    file = small_mnist(tmp_path) / name
    file.write_bytes(idx(array))
    with pytest.raises(UserError, match=re.escape(str(file))):
        mnist(tmp_path)


@needs_mnist
@pytest.mark.parametrize(
    ("name", "sizes"), [("ColoredMNIST", [23334, 23333, 23333]), ("RotatedMNIST", [11667] * 4 + [11666] * 2)]
)
def test_sizes_of_the_real_data(name: str, sizes: list[int]) -> None:
    assert list(DATASETS.find(name).load(REAL_MNIST).sizes.values()) == sizes


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
        ({"a": (IMAGES[:1], LABELS[:1])}, {}, "own/a.*1 images"),
        ({"a": (IMAGES[:4], LABELS[:4])}, {}, "own/a.*4 images"),
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


def test_lists_and_tensors_are_arrays_too() -> None:
    data = Environments.from_arrays({"a": (torch.from_numpy(IMAGES), LABELS.tolist()), "b": (IMAGES, LABELS)})
    assert data.sizes == {"a": 10, "b": 10} and data.classes == ("0", "1") and data.labels.dtype == torch.int64
    assert repr(data) == "<Environments arrays: 20 of 1x4x4, 2 classes; a 10, b 10>", "a line, not every pixel"


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
        DATASETS.find(BACKGROUND).load().rows("scen2")
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
