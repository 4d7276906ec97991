"""Known shortcuts of some datasets: predictions with the colour, or the background, changed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from domainwise.analysis.predictions import HeldOutImages, predictions
from domainwise.data.catalogue import data_root as find_root
from domainwise.data.sources.mnist import SCENES, background, overlay, source_digits
from domainwise.engine.restore import TrainedRun

CLEAR = 3
"""Standard errors by which a difference is called clear."""


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


@dataclass(frozen=True)
class AccuracyGap:
    """A difference of accuracies and its standard error."""

    mean: float
    error: float

    @property
    def clear(self) -> bool:
        return abs(self.mean) > CLEAR * self.error

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.error:.1f} points"


@dataclass(frozen=True)
class ColourUse:
    """ColoredMNIST: every image in its own and in the other colour, so that colour and digit are independent."""

    accuracy: dict[str, float]
    swapped: dict[str, float]  # the labels stay
    colour: float  # how often the prediction is the colour
    digit: float  # how often it is whether the true digit is below 5
    constant: float  # how often it is the most frequent prediction
    changed: float  # how often it changes with the colour alone
    images: int

    @property
    def follows(self) -> str:
        """What the predictions follow most often, "neither" if nothing clearly."""
        (best, share), (_, second) = self._ranked[:2]
        return "neither" if share - second <= CLEAR * math.sqrt(0.5 / self.images) else best

    @property
    def _ranked(self) -> list[tuple[str, float]]:
        shares = {"colour": self.colour, "the opposite of colour": 1 - self.colour, "the digit": self.digit}
        return sorted(shares.items(), key=lambda item: -item[1])

    @property
    def sentence(self) -> str:
        rest = f"the answer changes with the colour alone in {percent(self.changed)}"
        others = f"colour {percent(self.colour)}, digit {percent(self.digit)}, constant {percent(self.constant)}"
        if self.follows == "neither":
            return f"Follows neither colour nor digit clearly ({others}; {rest})."
        return f"Follows {self.follows} in {percent(self._ranked[0][1])} of the cases ({others}; {rest})."


@dataclass(frozen=True)
class BackgroundUse:
    """BackgroundDigits: the same digits over other backgrounds, over black, and backgrounds without digits."""

    accuracy: dict[str, float]
    swapped: dict[str, float]  # mean over the other domains' backgrounds
    black: dict[str, float]
    alone: dict[str, float]
    unseen: str
    gap: AccuracyGap  # the unseen domain's digits: over the training backgrounds minus over their own

    @property
    def sentence(self) -> str:
        unchanged, black = self.accuracy[self.unseen], self.black[self.unseen]
        where = f"over the background of {self.unseen}, which it never saw, than over those it was trained on"
        if self.gap.clear:
            verdict = f"Reads the same digits {'worse' if self.gap.mean > 0 else 'better'} {where}: by "
            verdict += str(AccuracyGap(abs(self.gap.mean), self.gap.error))
        else:
            verdict = f"Reads the same digits neither clearly better nor worse {where}: background gap {self.gap}"
        return f"{verdict} ({percent(unchanged)} right there, {percent(black)} over black)."


@dataclass(frozen=True)
class MixedUse:
    """Mixed-Same minus Mixed-Rand: the accuracy that a background of the right class adds (Xiao et al. 2020)."""

    gap: AccuracyGap

    @property
    def sentence(self) -> str:
        verdict = "Loses" if self.gap.clear and self.gap.mean > 0 else "Does not clearly lose"
        return f"{verdict} when the background is that of a random class: background gap {self.gap}."


Use = ColourUse | BackgroundUse | MixedUse


def shortcut(
    trained: TrainedRun, held_out: Sequence[HeldOutImages], right: Sequence[Tensor], root: Path | None
) -> Use | None:
    """The use of the dataset's known shortcut, if it has one. `right` marks the held-out images predicted correctly."""
    name = trained.environments.name
    if name.removesuffix("-embedded") == "ColoredMNIST":
        return colour_use(trained, held_out, right, find_root(root))
    if name == "BackgroundDigits" and trained.run.test_domains:
        return background_use(trained, held_out, right)
    by_domain = {held.domain: correct.double() for held, correct in zip(held_out, right, strict=True)}
    if {"Mixed-Same", "Mixed-Rand"} <= set(by_domain):
        same, mixed = by_domain["Mixed-Same"], by_domain["Mixed-Rand"]
        error = math.sqrt(sum(float(correct.var(correction=0)) / len(correct) for correct in (same, mixed)))
        return MixedUse(AccuracyGap(float(same.mean() - mixed.mean()), error))
    return None


def colour_use(
    trained: TrainedRun, held_out: Sequence[HeldOutImages], right: Sequence[Tensor], root: Path
) -> ColourUse:
    data = trained.environments.to("cpu")
    digits = source_digits(data.name, root).labels
    agreements: list[Tensor] = []  # [2 n, 3]: the prediction is the colour, the digit's half, class 1
    accuracy, swapped, changes = {}, {}, []
    for held, correct in zip(held_out, right, strict=True):
        images, labels = data.images[held.rows], data.labels[held.rows]
        colour = images.flatten(2).sum(2).argmax(1)  # the channel that has the ink
        low = (digits[held.rows] < 5).long()
        before, after = predictions(trained, images), predictions(trained, images.flip(1))
        accuracy[held.domain] = float(correct.double().mean())
        swapped[held.domain] = float((after == labels).double().mean())
        changes.append(before != after)
        for predicted, shown in ((before, colour), (after, 1 - colour)):
            agreements.append(torch.stack([predicted == shown, predicted == low, predicted == 1], 1))
    agree_colour, agree_digit, ones = torch.cat(agreements).double().mean(0).tolist()
    changed = torch.cat(changes).double()
    constant = max(ones, 1 - ones)
    return ColourUse(accuracy, swapped, agree_colour, agree_digit, constant, float(changed.mean()), len(changed))


def background_use(trained: TrainedRun, held_out: Sequence[HeldOutImages], right: Sequence[Tensor]) -> BackgroundUse:
    data, run = trained.environments, trained.run
    digits = source_digits(data.name, Path()).images
    labels = data.labels.cpu()
    scenes = {scene: background(scene) for scene in SCENES}
    blank = torch.zeros(1, 28, 28, dtype=torch.uint8)
    accuracy, swapped, black, alone = {}, {}, {}, {}
    unseen, gap = run.test_domains[0], AccuracyGap(0.0, 0.0)
    for held, correct in zip(held_out, right, strict=True):
        ink, truth, home = digits[held.rows], labels[held.rows], held.domain
        over = {
            scene: (predictions(trained, overlay(ink, behind)) == truth).double()
            for scene, behind in scenes.items()
            if scene != home
        }
        bare = predictions(trained, overlay(blank, scenes[home]))
        accuracy[home] = float(correct.double().mean())
        swapped[home] = float(torch.stack(list(over.values())).mean())
        black[home] = float((predictions(trained, overlay(ink, torch.zeros(3, 28, 28))) == truth).double().mean())
        alone[home] = float((bare == truth).double().mean())
        if home == unseen:
            known = torch.stack([over[scene] for scene in run.train_domains]).mean(0)
            lost = known - correct.double()
            gap = AccuracyGap(float(lost.mean()), float(lost.std(correction=0)) / math.sqrt(len(lost)))
    return BackgroundUse(accuracy, swapped, black, alone, unseen, gap)
