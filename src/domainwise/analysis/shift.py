"""Diversity and correlation shift between the training and the unseen domains of a dataset.

OoD-Bench's estimator (Ye et al. 2022, https://arxiv.org/abs/2106.03721): equal class proportions, features of a
discriminator between the two sides given the label, standardised, kernel densities, integrals by importance sampling.
Features are learned on one half of the images and measured on the other, so that memorised images are no shift. The
control is an i.i.d. split: two random parts of all domains together, which must show almost nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from domainwise.analysis.discriminator import BATCH, Discriminator, ImageSet, represent, train_discriminator
from domainwise.analysis.kernel_density import KernelDensity, Sampled, Thresholds, calibrate
from domainwise.analysis.probe import equal_classes
from domainwise.core import seeds
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.engine.assemble import as_read_by
from domainwise.engine.devices import pick_device
from domainwise.nets.loading import start_from
from domainwise.nets.network import build

MOST = 20_000
"""Images per side, at most: half of them to learn features on, half to measure them."""
SMALL = 0.1
"""Below this neither kind of shift is called one."""
SEPARABLE = 0.6
"""Above this accuracy of the discriminator, more images may show a shift."""
DOMINANT = 3
"""How many times larger a shift must be than the other to dominate."""


@dataclass(frozen=True)
class ShiftSettings:
    """How features are learned: a network by name, its initial weights, and where it runs."""

    network: str
    weights: str = ""
    device: str = "auto"
    images: int = MOST
    data_root: Path | None = None


def default_network(dataset: Dataset) -> str:
    """OoD-Bench's: an MLP where colour is all there is, a pre-trained ResNet-18 for photographs."""
    if dataset.scale == "image":
        return "resnet18-live"
    return "mlp" if dataset.image_size == 0 or dataset.name.startswith("ColoredMNIST") else "small-cnn"


@dataclass(frozen=True)
class FeatureSamples:
    """Standardised features [n, 8] and labels [n] of both sides, and how well the discriminator separates them."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    discriminator_accuracy: float

    def sampled(self, classes: int, *keys: str | int) -> Sampled:
        p = KernelDensity.fit(self.train, self.train_labels, classes)
        q = KernelDensity.fit(self.test, self.test_labels, classes)
        return Sampled.of(p, q, seeds.generator("shift", "points", *keys))


@dataclass(frozen=True)
class Shift:
    """The two shifts from the training domains to one unseen domain, of one seed, and those of its control."""

    unseen: str
    seed: int
    diversity: float
    correlation: float
    control_diversity: float
    control_correlation: float
    thresholds: Thresholds
    sides: FeatureSamples


@dataclass(frozen=True)
class DatasetShift:
    """All unseen domains and seeds."""

    dataset: str
    classes: tuple[str, ...]
    network: str
    calibrated: bool
    shifts: tuple[Shift, ...]

    @property
    def unseen(self) -> list[str]:
        return list(dict.fromkeys(shift.unseen for shift in self.shifts))

    def values(self, kind: str, unseen: str | None = None) -> list[float]:
        """Of one kind ("diversity", "control_correlation", ...), per seed; averaged over domains if none is named."""
        by_seed: dict[int, list[float]] = {}
        for shift in self.shifts:
            if unseen in (None, shift.unseen):
                by_seed.setdefault(shift.seed, []).append(float(getattr(shift, kind)))
        return [sum(values) / len(values) for values in by_seed.values()]

    def mean(self, kind: str, unseen: str | None = None) -> float:
        values = self.values(kind, unseen)
        return sum(values) / len(values)

    @property
    def sentence(self) -> str:
        diversity, correlation = self.mean("diversity"), self.mean("correlation")
        larger, smaller = max(diversity, correlation), min(diversity, correlation)
        if larger < SMALL:
            verdict = "neither kind of shift is clearly there"
            accuracy = sum(shift.sides.discriminator_accuracy for shift in self.shifts) / len(self.shifts)
            if accuracy > SEPARABLE:
                verdict += f", though the sides are told apart in {100 * accuracy:.0f} %: more images may show one"
        elif larger > DOMINANT * smaller:
            verdict = f"{'diversity' if diversity > correlation else 'correlation'} shift dominates"
        else:
            verdict = "both kinds of shift are there"
        control = f"{self.mean('control_diversity'):.3f} / {self.mean('control_correlation'):.3f}"
        numbers = f"diversity {diversity:.2f}, correlation {correlation:.2f}; i.i.d. control {control}"
        return f"{self.dataset}: {verdict} ({numbers})."


def measure_shift(
    environments: Environments,
    unseen: Sequence[str],
    settings: ShiftSettings,
    *,
    trials: Sequence[int] = (0,),
    calibrated: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> DatasetShift:
    """Every unseen domain against all others, for every seed; one control per seed."""
    device = pick_device(settings.device)
    everything = torch.arange(len(environments.labels))
    data = as_read_by(settings.network, environments).standardised(everything).to(device)
    classes = len(data.classes)
    rows = {domain: data.rows(domain) for domain in data.domains}
    everything = torch.cat(list(rows.values()))
    shifts = []
    for seed in trials:
        size = min(settings.images, max(len(rows[domain]) for domain in unseen), len(everything) // 2)
        shuffled = everything[seeds.permutation(len(everything), "shift", "control", seed)]
        progress(f"seed {seed}: i.i.d. control")
        control = learn_features(data, shuffled[:size], shuffled[size : 2 * size], settings, device, "control", seed)
        sampled = control.sampled(classes, "control", seed)
        thresholds = calibrate(sampled) if calibrated else Thresholds()
        nothing = sampled.diversity(thresholds.diversity), sampled.correlation(thresholds.correlation)
        for domain in unseen:
            progress(f"seed {seed}: {domain} unseen")
            rest = torch.cat([members for name, members in rows.items() if name != domain])
            sides = learn_features(data, rest, rows[domain], settings, device, domain, seed)
            sampled = sides.sampled(classes, domain, seed)
            both = sampled.diversity(thresholds.diversity), sampled.correlation(thresholds.correlation)
            shifts.append(Shift(domain, seed, *both, *nothing, thresholds, sides))
    return DatasetShift(data.name, data.classes, settings.network, calibrated, tuple(shifts))


def learn_features(
    data: Environments, first: Tensor, second: Tensor, settings: ShiftSettings, device: torch.device, *keys: str | int
) -> FeatureSamples:
    """Features of one half of the images of two sides, from a discriminator trained on the other half."""
    labels = data.labels.cpu()

    def inputs(rows: Tensor) -> Tensor:
        return data.normalise(data.images[rows].to(device))

    balanced = equal_classes([labels[first], labels[second]], *keys, most=settings.images)
    order = seeds.permutation(len(balanced[0]), "shift", "halves", data.name, *keys)
    halves = []
    for part in (order[::2], order[1::2]):
        rows = [members[chosen[part]] for members, chosen in zip((first, second), balanced, strict=True)]
        halves.append([ImageSet(members, labels[members].to(device), inputs) for members in rows])
    learned, sides = halves
    if len(sides[0].rows) < BATCH:
        few = f"{len(balanced[0])} images per side are left when classes are equally frequent"
        raise UserError(f"{data.name}: {few}; at least {2 * BATCH} are needed")
    with torch.random.fork_rng():
        torch.manual_seed(seeds.seed("shift", data.name, *keys))
        network = Discriminator(*_features(data, settings), len(data.classes)).to(device)
        network = train_discriminator(network, learned[0], learned[1], "shift", data.name, *keys)
    z = [represent(network, side) for side in sides]
    pooled = torch.cat(z)
    if not bool(pooled.isfinite().all()):
        advice = "use one with normalisation layers, such as mnist-cnn or resnet18-scratch"
        raise UserError(f"{data.name}: {settings.network} diverged as a discriminator between the sides: {advice}")
    mean, std = pooled.mean(0), pooled.std(0).clamp_min(1e-12)
    with torch.no_grad():
        share_second = [
            (network.logit(features.to(side.labels.device, torch.float32), side.labels) > 0).float().mean()
            for features, side in zip(z, sides, strict=True)
        ]
    standard = [(features - mean) / std for features in z]
    y = [side.labels.cpu() for side in sides]
    return FeatureSamples(standard[0], y[0], standard[1], y[1], float((1 - share_second[0] + share_second[1]) / 2))


def _features(data: Environments, settings: ShiftSettings) -> tuple[nn.Module, int]:
    network = build(settings.network, data.shape, len(data.classes))
    if settings.weights:
        start_from(network.features, settings.weights, settings.data_root)
    return network.features, network.feature_size


@dataclass(frozen=True)
class Profile:
    """Along the direction in which the features vary most: densities, and the probability of one class, on each side.

    The class is the one whose probability differs most between the sides.
    """

    at: Tensor
    p: Tensor
    q: Tensor
    label: int
    p_label: Tensor  # p(label | z); NaN where p is next to nothing
    q_label: Tensor


def profile(sides: FeatureSamples, classes: int, points: int = 200) -> Profile:
    """The two kinds of shift in one dimension (the paper's Figure 1)."""
    pooled = torch.cat([sides.train, sides.test])
    direction = torch.linalg.eigh(torch.cov(pooled.T))[1][:, -1:]
    line = (pooled - pooled.mean(0)) @ direction
    scale = line.std()
    train, test = (sides.train @ direction / scale, sides.test @ direction / scale)
    at = torch.linspace(float(line.min() / scale) - 0.5, float(line.max() / scale) + 0.5, points, dtype=torch.float64)
    p = KernelDensity.fit(train, sides.train_labels, classes).joint(at[:, None])
    q = KernelDensity.fit(test, sides.test_labels, classes).joint(at[:, None])
    p_all, q_all = p.sum(1), q.sum(1)
    nowhere = torch.tensor(math.nan, dtype=torch.float64)
    p_given = torch.where(p_all[:, None] > 0.01 * p_all.max(), p / p_all[:, None], nowhere)
    q_given = torch.where(q_all[:, None] > 0.01 * q_all.max(), q / q_all[:, None], nowhere)
    gap = ((p_given - q_given).abs().nan_to_num(0) * (p_all * q_all).sqrt()[:, None]).sum(0)
    label = int(gap.argmax())
    return Profile(at, p_all, q_all, label, p_given[:, label], q_given[:, label])
