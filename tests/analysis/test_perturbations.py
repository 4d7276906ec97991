"""Perturbations: spectra and cosines of images whose answers are known, and the command that shows them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from commands import command
from domainwise.analysis.perturbations import (
    CONTROLS,
    LOW,
    alignments,
    folder_with_perturbations,
    images_low,
    mean_image,
    measure,
    spectrum,
    white_noise_low,
)
from domainwise.core.errors import UserError
from domainwise.core.seeds import generator
from domainwise.data.sources.mnist import BackgroundDigits, background
from domainwise.engine.restore import TrainedRun, restore
from domainwise.engine.train import train
from domainwise.reports.pictures import perturbation_figure
from domainwise.sweeps.plan_run import plan_run


def wave(cycles: int, channels: int = 3, size: int = 28) -> Tensor:
    """A sine of so many cycles along each row."""
    row = torch.sin(2 * math.pi * cycles * torch.arange(size, dtype=torch.float64) / size)
    return row.expand(channels, size, size)


def test_a_wave_has_all_its_energy_at_its_frequency() -> None:
    for cycles in (1, 3, 4, 9):
        found = spectrum(wave(cycles))
        assert found.energy[cycles] == pytest.approx(1)
        assert found.frequencies[cycles] == pytest.approx(cycles / 28)
        assert found.low == pytest.approx(1.0 if cycles / 28 <= LOW else 0.0)
    both = spectrum(3 * wave(2) + 4 * wave(10))
    assert both.low == pytest.approx(9 / 25) and both.energy.sum() == pytest.approx(1)


def test_white_noise_is_even_over_the_frequencies() -> None:
    """Of the 28 x 28 frequencies (i, j), those with i^2 + j^2 <= 3.5^2 are low."""
    count = sum(i * i + j * j <= (28 * LOW) ** 2 for i in range(-14, 14) for j in range(-14, 14))
    assert white_noise_low((3, 28, 28)) == pytest.approx((count - 1) / (28**2 - 1)), "frequency zero is no pattern"
    noise = torch.randn(2000, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert spectrum(noise).low == pytest.approx(white_noise_low((1, 28, 28)), rel=0.02)


def test_the_mean_image_is_a_mean() -> None:
    images = torch.randint(0, 256, (600, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(5, 600)
    torch.testing.assert_close(mean_image(images, rows), images[5:].double().mean(0) / 255)


def alignment(delta: Tensor, direction: Tensor, level: float) -> tuple[float, float]:
    return alignments(delta[None], direction[None], level)[0]


def test_alignment_against_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(3, 28, 28, generator=generator, dtype=torch.float64)
    other = torch.randn(3, 28, 28, generator=generator, dtype=torch.float64)
    assert alignment(-2 * direction, direction, 0.95)[0] == pytest.approx(-1)
    cosine, chance = alignment(other, direction, 0.95)
    assert cosine == pytest.approx(float((other * direction).sum() / (other.norm() * direction.norm())))
    # white noise in d dimensions: cosines have deviation 1 / sqrt(d), here d = 3 * 28 * 28
    assert chance == pytest.approx(1.96 / math.sqrt(3 * 28 * 28), rel=0.15)
    # a smooth image is parallel to a smooth one far more often: all energy in one wave, cosine = cos(random phase)
    assert alignment(wave(1), wave(1), 0.95)[1] == pytest.approx(math.cos(math.pi / 2 * 0.05), abs=0.02)


def test_chance_is_that_of_copies_with_random_phases() -> None:
    """Made one by one, as images."""
    delta, direction = torch.randn(2, 3, 12, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    random = torch.randn(CONTROLS, 12, 10, generator=generator("random phases"), dtype=torch.float64)
    spin = torch.fft.fft2(random)
    copies = torch.fft.ifft2(torch.fft.fft2(delta)[None] * (spin / spin.abs())[:, None])
    assert float(copies.imag.abs().max()) < 1e-12
    cosines = torch.nn.functional.cosine_similarity(copies.real.flatten(1), direction.flatten()[None], dim=1)
    assert alignment(delta, direction, 0.9)[1] == pytest.approx(float(cosines.abs().quantile(0.9)))


def test_a_mean_level_is_no_pattern() -> None:
    assert spectrum(wave(9) + 100).low == pytest.approx(0) and spectrum(wave(2) + 100).low == pytest.approx(1)
    images = (127 + 100 * torch.stack([wave(2), wave(2), wave(2), wave(9)])).round().to(torch.uint8)
    assert images_low(images) == pytest.approx(0.75, abs=0.01)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainedRun]:
    data, out = BackgroundDigits(Path()), tmp_path_factory.mktemp("runs")
    facts = {"steps": 1, "hparams": {"batch_size": 4, "eps": 2.0}}
    runs = [plan_run("BackgroundDigits", name, "scene2", **facts) for name in ("DAT", "UAT", "EnsembleUAT")]
    folders = [train(run, out, device="cpu", environments=data).folder for run in runs]
    return {trained.run.algorithm: trained for trained in (restore(folder, environments=data) for folder in folders)}


def with_delta(trained: TrainedRun, delta: Tensor) -> TrainedRun:
    trained.algorithm.delta.copy_(delta)
    return trained


def test_a_perturbation_that_is_the_background_fits_it(trained: dict[str, TrainedRun]) -> None:
    scenes = torch.stack([background(f"scene{i}") for i in (1, 3, 4)])
    measured = measure(with_delta(trained["DAT"], (scenes - scenes.mean(0))[:, None]))
    assert all(found.cosine > 0.9 and found.fits for found in measured.domains)
    assert "It is mostly of low frequency: " in measured.sentence
    assert measured.sentence.endswith("is supported here.")
    one = (scenes - scenes.mean(0))[:, None].clone()
    one[1:] = torch.randn(2, 1, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    assert measure(with_delta(trained["DAT"], one)).sentence.endswith("is supported in part.")


def test_noise_does_not_fit(trained: dict[str, TrainedRun]) -> None:
    noise = torch.randn(3, 1, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    measured = measure(with_delta(trained["EnsembleUAT"], noise))
    assert not any(found.fits for found in measured.domains)
    assert "It is not clearly smoother than white noise: " in measured.sentence
    assert "not supported here" in measured.sentence


def test_a_fifth_of_the_energy_is_smoother_than_noise_but_not_of_low_frequency(trained: dict[str, TrainedRun]) -> None:
    mixture = (2**-1 * wave(2) + wave(9)).expand(3, 1, 3, 28, 28)
    measured = measure(with_delta(trained["DAT"], mixture))
    assert "It is smoother than white noise, but not mostly of low frequency: 20 % of its energy" in measured.sentence
    assert "of white noise's 5 % have, of the domains' images' " in measured.sentence
    assert all(one.images_low > 0.3 for one in measured.domains)


def test_pictures_are_in_image_units_and_norms_in_the_networks(trained: dict[str, TrainedRun]) -> None:
    own = with_delta(trained["DAT"], torch.full((3, 1, 3, 28, 28), 0.5))
    scaled = replace(own, environments=replace(own.environments, std=torch.full((3, 1, 1), 0.2)))
    (first, *_) = measure(scaled).domains
    assert first.norm == pytest.approx(0.5 * math.sqrt(3 * 28 * 28))
    torch.testing.assert_close(first.delta, torch.full((3, 28, 28), 0.1, dtype=torch.float64))
    torch.testing.assert_close(first.perturbed, (first.sample + 0.1).clamp(max=1).double())


def test_a_universal_perturbation_is_compared_with_every_domain(trained: dict[str, TrainedRun]) -> None:
    measured = measure(trained["UAT"])
    assert measured.universal and [found.domain for found in measured.domains] == ["scene1", "scene3", "scene4"]
    assert torch.equal(measured.domains[0].delta, measured.domains[2].delta)
    assert len(perturbation_figure(measured).axes) == 15


def test_the_command(
    trained: dict[str, TrainedRun], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = command(capsys, "perturbations", trained["DAT"].folder, "--json", "--out", "a/b.svg")
    told = json.loads(out)
    assert status == 0 and "<svg" in Path("a/b.svg").read_text()
    assert [found["domain"] for found in told["domains"]] == ["scene1", "scene3", "scene4"]
    assert told["sentence"].startswith("Does the perturbation fit the background?")
    status, out, _ = command(capsys, "perturbations", trained["UAT"].folder)
    assert status == 0 and "perturbations.png" in out and "by chance" in out


def test_methods_without_perturbations(tmp_path: Path) -> None:
    data = BackgroundDigits(Path())
    folder = train(plan_run(data.name, "ERM", 0, steps=1), tmp_path, device="cpu", environments=data).folder
    with pytest.raises(UserError, match="ERM learns no perturbations"):
        measure(restore(folder, environments=data))


def test_of_a_sweep_the_domain_wise_perturbations_are_shown(trained: dict[str, TrainedRun]) -> None:
    folders = [trained[name].folder for name in ("UAT", "DAT")]
    assert folder_with_perturbations(folders) == trained["DAT"].folder
    assert folder_with_perturbations(folders[:1]) == trained["UAT"].folder
