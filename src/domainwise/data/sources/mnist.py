"""Datasets made of MNIST's digits: BackgroundDigits, ColoredMNIST and RotatedMNIST.

A dataset's name fixes its images; a trial changes only its splits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from domainwise.core.registry import first_paragraph
from domainwise.core.seeds import generator, permutation
from domainwise.data.catalogue import DATASETS, Dataset, dataset
from domainwise.data.sources.digits import MNIST, Digits, embedded_digits, mnist
from domainwise.data.sources.parts import Source

if TYPE_CHECKING:
    from torch import Tensor

    from domainwise.data.environments import Environments

Pixels = npt.NDArray[np.uint8]
Build: TypeAlias = "Callable[[Digits, str], Environments]"

DIGITS = tuple("0123456789")
HALVES = ("5-9", "0-4")
SCENES = ("scene1", "scene2", "scene3", "scene4")
COLOUR_FLIPS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
ANGLES = (0, 15, 30, 45, 60, 75)

PUBLIC = Source("http://yann.lecun.com/exdb/mnist/", "CC BY-SA 3.0", 70_000, (MNIST,))
EMBEDDED = replace(PUBLIC, images=5_000, parts=())


def distribute(digits: Digits, name: str, domains: int) -> list[Digits]:
    """Shuffles the digits and distributes them evenly: domain i has rows [i::domains]."""
    order = permutation(len(digits.labels), name, "deal")
    return [Digits(digits.images[order[i::domains]], digits.labels[order[i::domains]]) for i in range(domains)]


def background(name: str) -> Tensor:
    """A smooth, static, coloured background, [3, 28, 28] in [0, 0.8]: 4x4 random colours, enlarged bicubically."""
    import torch

    colours = torch.rand(1, 3, 4, 4, generator=generator("BackgroundDigits", "background", name))
    smooth = torch.nn.functional.interpolate(colours, size=(28, 28), mode="bicubic", align_corners=False)
    return 0.8 * smooth[0].clamp(0, 1)


def overlay(digits: Tensor, behind: Tensor) -> Tensor:
    """Grey digits, uint8 [n, 28, 28], in white over a background [3, 28, 28] in [0, 1]: uint8 [n, 3, 28, 28]."""
    ink = digits[:, None] / 255
    return ((ink + (1 - ink) * behind) * 255).round().byte()


@lru_cache(maxsize=1)
def source_digits(name: str, root: Path) -> Digits:
    """The plain digits that a dataset of this module is made of, in the order of its rows."""
    import torch

    embedded = name == "BackgroundDigits" or name.endswith("-embedded")
    parts = distribute(embedded_digits() if embedded else mnist(root), name, len(DATASETS[name].domains))
    return Digits(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))


@dataset(
    domains=SCENES,
    classes=DIGITS,
    shape=(3, 28, 28),
    network="small-cnn",
    steps=601,
    evaluate_every=100,
    source=EMBEDDED,
)
def BackgroundDigits(root: Path) -> Environments:  # noqa: ARG001 (embedded)
    """5,000 real digits, each over its domain's own static coloured background (the paper's Section 4 in small)."""
    from domainwise.data.environments import Environments

    arrays = {}
    for scene, part in zip(SCENES, distribute(embedded_digits(), "BackgroundDigits", len(SCENES)), strict=True):
        arrays[scene] = (overlay(part.images, background(scene)), part.labels)
    return Environments.from_arrays(arrays, name="BackgroundDigits", classes=DIGITS)


def from_mnist(**fields: Any) -> Callable[[Build], Build]:
    """Registers a dataset made of MNIST's 70,000 digits and, as NAME-embedded, of the 5,000 embedded ones."""

    def register(build: Build) -> Build:
        name, summary = build.__name__, first_paragraph(build.__doc__)
        small = f"{name}-embedded"
        note = "From the 5,000 embedded digits: for quick work, never for published tables."
        full = Dataset(name, summary, loader=lambda root: build(mnist(root, name), name), source=PUBLIC, **fields)
        embedded = Dataset(
            small, f"{summary} {note}", loader=lambda _: build(embedded_digits(), small), source=EMBEDDED, **fields
        )
        DATASETS.add(name, full)
        DATASETS.add(small, embedded)
        return build

    return register


@from_mnist(
    domains=tuple(COLOUR_FLIPS), classes=HALVES, shape=(2, 28, 28), scale="small", network="mnist-cnn", steps=5001
)
def ColoredMNIST(digits: Digits, name: str) -> Environments:
    """Is the digit below 5? 25 % label noise, and a colour that agrees with the label in 90, 80 or 10 % of the images.

    y = (digit < 5) flipped with probability 0.25; colour = y XOR Bernoulli(e); channel 1 - colour is zeroed.
    """
    import torch

    from domainwise.data.environments import Environments

    arrays = {}
    for (domain, flip), part in zip(COLOUR_FLIPS.items(), distribute(digits, name, len(COLOUR_FLIPS)), strict=True):
        random = torch.rand(2, len(part.labels), generator=generator(name, "colour", domain))
        labels = (part.labels < 5) ^ (random[0] < 0.25)
        colours = (labels ^ (random[1] < flip)).long()
        images = torch.zeros(len(labels), 2, 28, 28, dtype=torch.uint8)
        images[torch.arange(len(labels)), colours] = part.images
        arrays[domain] = (images, labels.long())
    return Environments.from_arrays(arrays, name=name, classes=HALVES)


@from_mnist(
    domains=tuple(map(str, ANGLES)), classes=DIGITS, shape=(1, 28, 28), scale="small", network="mnist-cnn", steps=5001
)
def RotatedMNIST(digits: Digits, name: str) -> Environments:
    """Ten digits, rotated by 0, 15, 30, 45, 60 or 75 degrees (bilinear)."""
    from domainwise.data.environments import Environments

    arrays = {}
    for angle, part in zip(ANGLES, distribute(digits, name, len(ANGLES)), strict=True):
        turned = np.stack([_rotate(image, angle) for image in part.images.numpy()])
        arrays[str(angle)] = (turned[:, None], part.labels)
    return Environments.from_arrays(arrays, name=name, classes=DIGITS)


def _rotate(image: Pixels, angle: int) -> Pixels:
    return np.asarray(Image.fromarray(image).rotate(angle, resample=Image.Resampling.BILINEAR))
