"""The datasets made of digits: colours, rotations, backgrounds, and how digits are dealt."""

from functools import cache

import pytest
import torch
from PIL import Image
from torch import Tensor

from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments
from domainwise.data.sources.digits import Digits, embedded_digits
from domainwise.data.sources.mnist import ANGLES, distribute

COLOURED, ROTATED, BACKGROUND = "ColoredMNIST-embedded", "RotatedMNIST-embedded", "BackgroundDigits"


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
    data, upright = DATASETS[name].load(), rotations(0)
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
    images, labels = domain(DATASETS[COLOURED].load(), name)
    ink = images.flatten(2).amax(2) > 0
    assert (ink.sum(1) == 1).all(), "one channel holds the digit, channel 1 - colour is zero"
    colours = ink[:, 1].long()
    assert within_binomial((colours == labels).float().mean().item(), agreement, len(labels))
    for label in (0, 1):
        chosen = labels == label
        fraction = (colours[chosen] == label).float().mean().item()
        assert within_binomial(fraction, agreement, int(chosen.sum())), "alike for both labels"


def test_a_quarter_of_all_labels_is_flipped() -> None:
    data, digits = DATASETS[COLOURED].load(), embedded_digits()
    below_five = digits.labels[torch.cat(list(sources(COLOURED).values()))] < 5
    assert within_binomial((data.labels != below_five).float().mean().item(), 0.25, 5000)


@pytest.mark.parametrize("name", ["+90%", "+80%", "-90%"])
def test_label_noise_is_alike_for_both_labels_of_every_domain(name: str) -> None:
    labels = domain(DATASETS[COLOURED].load(), name)[1]
    below_five = (embedded_digits().labels[sources(COLOURED)[name]] < 5).long()
    for side in (0, 1):
        chosen = below_five == side
        assert within_binomial((labels != below_five)[chosen].float().mean().item(), 0.25, int(chosen.sum()))


def test_colour_noise_and_label_noise_are_independent() -> None:
    images, labels = domain(DATASETS[COLOURED].load(), "+90%")
    below_five = (embedded_digits().labels[sources(COLOURED)["+90%"]] < 5).long()
    disagrees = (images.flatten(2).amax(2)[:, 1] > 0).long() != labels
    flipped = labels != below_five
    assert within_binomial(disagrees[flipped].float().mean().item(), 0.1, int(flipped.sum()))


def test_coloured_digits_keep_their_grey_values() -> None:
    data = DATASETS[COLOURED].load()
    assert data.images.max() == 255 and data.shape == (2, 28, 28) and len(data.classes) == 2
    assert data.normalise(data.images[:100]).max() <= 1


# RotatedMNIST


@pytest.mark.parametrize("angle", ANGLES)
def test_rotated_digits_are_pillows(angle: int) -> None:
    images, labels = domain(DATASETS[ROTATED].load(), str(angle))
    known = rotations(angle)
    rows = torch.tensor([known[image.numpy().tobytes()] for image in images[:, 0]])
    assert torch.equal(embedded_digits().labels[rows], labels)


def test_rotation_domains_are_named_by_their_angle_and_the_first_is_upright() -> None:
    data = DATASETS[ROTATED].load()
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
    parts = distribute(Digits(numbers.view(-1, 1, 1).expand(-1, 28, 28), numbers), "anything", domains)
    assert [len(part.labels) for part in parts] == [len(range(i, 100, domains)) for i in range(domains)]
    shuffled = torch.empty_like(numbers)
    for i, part in enumerate(parts):
        shuffled[i::domains] = part.labels
        assert torch.equal(part.images[:, 0, 0], part.labels), "images stay with their labels"
    assert torch.equal(shuffled.sort().values, numbers) and not torch.equal(shuffled, numbers)
    assert torch.equal(shuffled, distribute(Digits(numbers, numbers), "anything", 1)[0].labels), "one shuffle for any n"
    assert not torch.equal(shuffled, distribute(Digits(numbers, numbers), "another", 1)[0].labels)


# BackgroundDigits


@cache
def backgrounds() -> Tensor:
    """[domain, 3, 28, 28]: ink only ever brightens, so the darkest value of a pixel is its background."""
    data = DATASETS[BACKGROUND].load()
    return torch.stack([domain(data, name)[0].amin(0) for name in data.domains]).float()


def test_pixels_without_ink_show_the_domains_background() -> None:
    data = DATASETS[BACKGROUND].load()
    parts = distribute(embedded_digits(), BACKGROUND, 4)
    for name, part, background in zip(data.domains, parts, backgrounds(), strict=True):
        images, labels = domain(data, name)
        bare = (part.images == 0)[:, None].expand_as(images)
        assert torch.equal(images[bare].float(), background.expand_as(images)[bare])
        assert torch.equal(labels, part.labels)


def test_digits_are_pasted_over_the_background() -> None:
    data = DATASETS[BACKGROUND].load()
    for name, part, background in zip(
        data.domains, distribute(embedded_digits(), BACKGROUND, 4), backgrounds(), strict=True
    ):
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
    data = DATASETS[BACKGROUND].load()
    assert data.shape == (3, 28, 28) and list(data.sizes.values()) == [1250] * 4
    for name in data.domains:
        assert domain(data, name)[1].bincount(minlength=10).min() > 80


@pytest.mark.parametrize("name", [BACKGROUND, COLOURED, ROTATED])
def test_registered_facts_match_the_data(name: str) -> None:
    known, data = DATASETS[name], DATASETS[name].load()
    facts = (data.name, data.domains, data.shape, data.classes)
    assert facts == (name, known.domains, known.shape, known.classes)
