"""Diversity and correlation shift: integrals with known answers, kernel densities, and data made to have one kind."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from commands import command
from domainwise.analysis.discriminator import AVERAGED_FROM, Discriminator, ImageSet, train_discriminator
from domainwise.analysis.kernel_density import CONTROL, KernelDensity, Sampled, Thresholds, calibrate
from domainwise.analysis.probe import equal_classes
from domainwise.analysis.shift import FeatureSamples, ShiftSettings, measure_shift, profile
from domainwise.core.errors import UserError
from domainwise.core.optimizers import SGD
from domainwise.data.environments import Environments
from domainwise.reports.pictures import shift_figure
from small_datasets import make_folder

FIXED = Thresholds()


@dataclass(frozen=True)
class Clusters:
    """Narrow Gaussians on a line (of any dimension): each with a weight and the probability of class 1."""

    centres: tuple[float, ...]
    weights: tuple[float, ...]
    ones: tuple[float, ...]
    dimension: int = 1
    width: float = 0.05

    def joint(self, z: Tensor) -> Tensor:
        total = torch.zeros(len(z), 2, dtype=torch.float64)
        for centre, weight, one in zip(self.centres, self.weights, self.ones, strict=True):
            squares = (z - centre).square().sum(1)
            scale = (2 * math.pi * self.width**2) ** (self.dimension / 2)
            density = weight * (-squares / (2 * self.width**2)).exp() / scale
            total += density[:, None] * torch.tensor([1 - one, one], dtype=torch.float64)
        return total

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.draw(n, generator)[0]

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        picks = torch.multinomial(torch.tensor(self.weights).double(), n, replacement=True, generator=generator)
        noise = torch.randn(n, self.dimension, generator=generator, dtype=torch.float64)
        ones = torch.rand(n, generator=generator) < torch.tensor(self.ones)[picks]
        return torch.tensor(self.centres, dtype=torch.float64)[picks][:, None] + self.width * noise, ones.long()


CASES = {
    "alike": (Clusters((-1, 1), (0.5, 0.5), (0.2, 0.7)), Clusters((-1, 1), (0.5, 0.5), (0.2, 0.7)), 0, 0),
    "apart": (Clusters((-1,), (1,), (0.5,)), Clusters((1,), (1,), (0.5,)), 1, 0),
    "half apart": (Clusters((-1, 0), (0.5, 0.5), (0.5, 0.5)), Clusters((0, 1), (0.5, 0.5), (0.5, 0.5)), 0.5, 0),
    # 1/2 sum over clusters of 0.5 * 2 |0.9 - 0.2|
    "other labels": (Clusters((-1, 1), (0.5, 0.5), (0.9, 0.1)), Clusters((-1, 1), (0.5, 0.5), (0.2, 0.8)), 0, 0.7),
    # a third of p and of q alone; in the rest, sqrt(p q) = 2/3 there: 2/3 * |1 - 0.4|
    "both": (Clusters((-1, 0), (1 / 3, 2 / 3), (0.5, 1)), Clusters((0, 1), (2 / 3, 1 / 3), (0.4, 0.5)), 1 / 3, 0.4),
    # different weights on the same support are neither: 1/2 * 2 * sqrt(0.8 * 0.2) * |1 - 0| per cluster
    "weights": (Clusters((-1, 1), (0.8, 0.2), (1, 0)), Clusters((-1, 1), (0.2, 0.8), (0, 1)), 0, 0.8),
}


@pytest.mark.parametrize("case", CASES)
def test_integrals_of_known_densities(case: str) -> None:
    p, q, diversity, correlation = CASES[case]
    sampled = Sampled.of(p, q, torch.Generator().manual_seed(0))
    assert sampled.diversity(FIXED.diversity) == pytest.approx(diversity, abs=0.03)
    assert sampled.correlation(FIXED.correlation) == pytest.approx(correlation, abs=0.03)


@pytest.mark.parametrize("case", CASES)
def test_kernel_densities_of_samples(case: str) -> None:
    p, q, diversity, correlation = CASES[case]
    generator = torch.Generator().manual_seed(1)
    (train, train_labels), (test, test_labels) = p.draw(6000, generator), q.draw(6000, generator)
    pooled = torch.cat([train, test])
    standard = [(z - pooled.mean(0)) / pooled.std(0) for z in (train, test)]
    kernels = KernelDensity.fit(standard[0], train_labels, 2), KernelDensity.fit(standard[1], test_labels, 2)
    sampled = Sampled.of(*kernels, generator, points=4000)
    # three clusters of unit variance are eight kernel widths apart: no density falls to 1e-12 between them
    assert sampled.diversity(1e-6) == pytest.approx(diversity, abs=0.03)
    assert sampled.correlation(FIXED.correlation) == pytest.approx(correlation, abs=0.03)


def test_a_kernel_density_is_the_mean_of_its_kernels() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(50) % 4
    density = KernelDensity.fit(features, labels, 5)
    assert density.width == pytest.approx(50 ** (-1 / 7))
    z = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    kernel = torch.distributions.MultivariateNormal(torch.zeros(3).double(), density.width**2 * torch.eye(3).double())
    for i in range(7):
        for c in range(4):
            own = kernel.log_prob(z[i] - features[labels == c]).exp().sum() / 50
            assert float(density.joint(z)[i, c]) == pytest.approx(float(own), rel=1e-9)
    assert float(density.joint(z)[:, 4].max()) == 0  # a class without samples
    drawn = density.sample(20_000, generator)
    expected = torch.cov(features.T, correction=0) + density.width**2 * torch.eye(3)
    torch.testing.assert_close(torch.cov(drawn.T), expected, rtol=0, atol=0.06)


def test_thresholds_are_calibrated_on_the_control() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2000, 4, generator=generator, dtype=torch.float64)
    labels = (torch.rand(2000, generator=generator) < (2 * z[:, 0]).sigmoid()).long()
    control = FeatureSamples(z[:1000], labels[:1000], z[1000:], labels[1000:], 0.5).sampled(2)
    found = calibrate(control)
    assert CONTROL[0] <= control.diversity(found.diversity) <= CONTROL[1]
    assert CONTROL[0] <= control.correlation(found.correlation) <= CONTROL[1]
    assert control.diversity(10 * found.diversity) > control.diversity(found.diversity)
    assert control.correlation(10 * found.correlation) < control.correlation(found.correlation)


def test_class_proportions_are_equal_and_capped() -> None:
    labels = [torch.tensor([0] * 30 + [1] * 60), torch.tensor([0] * 80 + [1] * 20)]
    kept = equal_classes(labels, "x")
    assert [own[rows].bincount().tolist() for own, rows in zip(labels, kept, strict=True)] == [[30, 20]] * 2
    few = equal_classes(labels, "x", most=10)
    assert [own[rows].bincount().tolist() for own, rows in zip(labels, few, strict=True)] == [[6, 4]] * 2


def test_weights_are_averaged_after_the_fifth_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 3), torch.zeros(32, dtype=torch.int64)
    sides = [ImageSet(torch.arange(32) + start, y, lambda rows: x[rows]) for start in (0, 32)]
    network = Discriminator(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), 4, 1)
    after: list[Tensor] = []  # each of the two sides is one batch: one step is one epoch
    step = SGD.step

    def noted(self: SGD) -> None:
        step(self)
        after.append(network.score.weight.detach().clone())

    monkeypatch.setattr(SGD, "step", noted)
    averaged = train_discriminator(network, sides[0], sides[1], "x", epochs=AVERAGED_FROM + 3)
    assert len(after) == AVERAGED_FROM + 3 and not torch.equal(after[-1], after[-2])
    torch.testing.assert_close(averaged.score.weight.detach(), torch.stack(after[-3:]).mean(0))
    with torch.no_grad():
        hidden = averaged.features[0](x)
    # BatchNorm's statistics are those of the averaged weights, over all samples
    torch.testing.assert_close(averaged.features[1].running_mean, hidden.mean(0))


def vectors(kind: str, n: int = 600) -> Environments:
    """Three domains of vectors; in the third either the look is new, or labels go with the other look."""
    generator = torch.Generator().manual_seed(0)
    domains = {}
    for name in ("a", "b", "c"):
        labels = torch.arange(n) % 2
        look = torch.where(torch.rand(n, generator=generator) < 0.9, labels, 1 - labels)
        if kind == "correlation" and name == "c":
            look = 1 - look
        x = torch.randn(n, 4, generator=generator)
        x[:, 0] += 8 * look
        if kind == "diversity" and name == "c":
            x[:, 1] += 12
        domains[name] = (x.numpy(), labels)
    return Environments.from_arrays(domains, name=kind, classes=("$x_", "y$"))


@pytest.mark.parametrize("kind", ["diversity", "correlation"])
def test_data_made_to_have_one_kind_of_shift(kind: str) -> None:
    measured = measure_shift(vectors(kind), ["c"], ShiftSettings("mlp", device="cpu"))
    other = "correlation" if kind == "diversity" else "diversity"
    assert measured.mean(kind) > 0.2 and measured.mean(other) < 0.05
    assert measured.sentence.startswith(f"{kind}: {kind} shift dominates")
    (shift,) = measured.shifts
    assert CONTROL[0] <= shift.control_diversity <= CONTROL[1] and shift.sides.discriminator_accuracy > 0.85
    drawn = profile(shift.sides, 2)
    step = float(drawn.at[1] - drawn.at[0])
    assert float(drawn.p.sum()) * step == pytest.approx(1, abs=0.02) == float(drawn.q.sum()) * step
    if kind == "correlation":
        assert float((drawn.p_label - drawn.q_label).abs().nan_to_num(0).max()) > 0.6
    figure = shift_figure(measured)
    figure.draw_without_rendering()  # names with dollar signs are no mathematics
    assert len(figure.axes) == 2


def test_domains_that_do_not_differ_show_little() -> None:
    measured = measure_shift(vectors("nothing"), ["a"], ShiftSettings("mlp", device="cpu"))
    assert "neither kind of shift is clearly there (" in measured.sentence
    shifts = tuple(replace(s, sides=replace(s.sides, discriminator_accuracy=0.8)) for s in measured.shifts)
    assert "told apart in 80 %: more images may show one" in replace(measured, shifts=shifts).sentence


def test_what_is_known_by_heart_is_no_shift() -> None:
    """Two hundred numbers of pure noise tell 150 samples apart that were learned, and no others."""
    generator = torch.Generator().manual_seed(0)
    domains = {name: (torch.randn(300, 200, generator=generator).numpy(), torch.arange(300) % 2) for name in "ab"}
    measured = measure_shift(Environments.from_arrays(domains, name="noise"), ["b"], ShiftSettings("mlp", device="cpu"))
    (shift,) = measured.shifts
    assert len(shift.sides.test) == 150 and abs(shift.sides.discriminator_accuracy - 0.5) < 0.1
    assert "neither kind of shift is clearly there" in measured.sentence


def test_too_few_images() -> None:
    with pytest.raises(UserError, match="images per side are left"):
        measure_shift(vectors("few", 30), ["a"], ShiftSettings("mlp", device="cpu"))


def test_features_that_diverge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("domainwise.analysis.discriminator.LR", 1e30)
    with pytest.raises(UserError, match="mlp diverged as a discriminator"):
        measure_shift(vectors("hot", 100), ["a"], ShiftSettings("mlp", device="cpu"))


def test_bad_images_of_a_folder_are_left_out_if_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = make_folder(tmp_path / "photos", count=3)
    (photos / "lab" / "cat" / "001.png").write_bytes(b"")
    asked = ("shift", photos, "--network", "small-cnn", "--image-size", 8, "--device", "cpu")
    assert (
        "001.png: the file is empty; repair or remove it, or leave such images out (--skip-bad)"
        in command(capsys, *asked).err
    )
    assert "photos: 6 images per side are left" in command(capsys, *asked, "--skip-bad").err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = ("shift", "ColoredMNIST-embedded", "--test-domain", "-90%", "--images", 1200, "--device", "cpu")
    status, out, _ = command(capsys, *few, "--json", "--out", "a.pdf")
    told = json.loads(out)
    assert status == 0 and Path("a.pdf").exists() and told["network"] == "mlp"
    assert told["correlation"] > 0.2 > 0.02 > told["diversity"] and told["shifts"][0]["images_per_side"] <= 600
    status, out, _ = command(capsys, *few, "--fixed", "--trials", 2, "--images", 300)
    assert status == 0 and "2 seeds, thresholds fixed" in out and "i.i.d. control" in out
    status, _, err = command(capsys, "shift", "ColoredMNIST-embedded", "--test-domain", "nowhere")
    assert status == 2 and "unknown domain" in err
