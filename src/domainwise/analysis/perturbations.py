"""Learned perturbations: does that of a domain fit the domain's background (paper, Section 4)?

Two claims are measured apart, each against chance:

    low frequency     share of the perturbation's energy at frequencies up to LOW, against white noise
    the background    cosine of the perturbation with (the domain's mean image - the mean over the domains), against
                      perturbations of the same spectrum with random phases

The second control matters: a smooth perturbation is by accident more parallel to a smooth background than noise is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.core.seeds import generator
from domainwise.engine.restore import TrainedRun, finished

LOW = 1 / 8
"""Cycles per pixel: patterns at least eight pixels long count as low frequency."""
WITH_PERTURBATIONS = ("DAT", "UAT", "EnsembleUAT")
"""Methods that learn perturbations, the most telling first."""
CONTROLS = 1000
"""Random perturbations per control."""


@dataclass(frozen=True)
class Spectrum:
    """Shares of the energy in rings of equal width around frequency zero; the shares add up to one."""

    frequencies: Tensor  # [R], cycles per pixel
    energy: Tensor  # [R]
    low: float  # the share at frequencies up to LOW


@dataclass(frozen=True)
class Perturbation:
    """One domain's perturbation, in units of the image (0 to 1), and how it relates to the domain."""

    domain: str
    delta: Tensor  # [C, H, W]
    norm: float  # l2, in the network's units, as eps is
    mean_image: Tensor
    sample: Tensor
    perturbed: Tensor
    spectrum: Spectrum
    mean_spectrum: Spectrum
    noise_low: float  # the share of white noise
    cosine: float
    chance: float  # the |cosine| that random perturbations of the same spectrum rarely exceed (5 % over all domains)

    @property
    def fits(self) -> bool:
        return abs(self.cosine) > self.chance


@dataclass(frozen=True)
class Perturbations:
    """Those of one run; a universal perturbation is compared with every domain."""

    dataset: str
    method: str
    eps: float
    universal: bool
    domains: tuple[Perturbation, ...]

    @property
    def sentence(self) -> str:
        """Does the perturbation fit the background? Only as much as was measured."""
        low = [100 * p.spectrum.low for p in self.domains]
        noise = 100 * self.domains[0].noise_low
        smooth = all(p.spectrum.low > 2 * p.noise_low for p in self.domains)
        fitting = [p for p in self.domains if p.fits]
        verdict = {0: "not supported here", len(self.domains): "supported here"}.get(len(fitting), "supported in part")
        cosines = ", ".join(f"{p.cosine:+.2f} ({p.domain}; chance ±{p.chance:.2f})" for p in self.domains)
        energy = f"{min(low):.0f} %" if self.universal else f"{min(low):.0f} to {max(low):.0f} %"
        return (
            f"Does the perturbation fit the background? It is {'of' if smooth else 'not clearly of'} low frequency: "
            f"{energy} of its energy has a period of {1 / LOW:.0f} pixels or more ({noise:.0f} % of white noise's). "
            f"Its cosine with what sets a domain's mean image apart is {cosines}: that it fits the domain's background "
            f"is {verdict}."
        )


def folder_with_perturbations(folders: Sequence[Path]) -> Path:
    """Of several runs' folders, one with learned perturbations, if there is one."""
    methods = {finished(folder).run.algorithm: folder for folder in reversed(folders)}
    return next((methods[name] for name in WITH_PERTURBATIONS if name in methods), folders[0])


def measure(trained: TrainedRun) -> Perturbations:
    """The perturbations that a run of DAT, UAT or EnsembleUAT learned."""
    run, data = trained.run, trained.environments.to("cpu")
    learned = dict(trained.algorithm.named_buffers()).get("delta")
    if learned is None:
        raise UserError(f"{run}: {run.algorithm} learns no perturbations; use a run of DAT, UAT or EnsembleUAT")
    if len(data.shape) != 3:
        raise UserError(f"{run}: perturbations of inputs of shape {data.shape} are no pictures")
    deltas = learned.detach().cpu()[:, 0].expand(len(run.train_domains), *data.shape)
    rows = [data.split(domain, run.trial, run.held_out)["in"] for domain in run.train_domains]
    means = torch.stack([mean_image(data.images, members) for members in rows])
    measured = []
    for number, domain in enumerate(run.train_domains):
        delta = (deltas[number] * data.std).double()
        sample = data.images[rows[number][0]] / 255
        cosine, chance = alignment(delta, means[number] - means.mean(0), 1 - 0.05 / len(run.train_domains))
        measured.append(
            Perturbation(
                domain=domain,
                delta=delta,
                norm=float(deltas[number].norm()),
                mean_image=means[number],
                sample=sample,
                perturbed=(sample + delta).clamp(0, 1),
                spectrum=spectrum(delta),
                mean_spectrum=spectrum(means[number]),
                noise_low=white_noise_low(delta.shape),
                cosine=cosine,
                chance=chance,
            )
        )
    eps = float(run.hparams["eps"] or 0)
    return Perturbations(data.name, run.algorithm, eps, len(learned) < len(run.train_domains), tuple(measured))


def mean_image(images: Tensor, rows: Tensor, chunk: int = 256) -> Tensor:
    """The mean of uint8 images, in [0, 1] and float64, without holding them all as floats."""
    total = torch.zeros(images.shape[1:], dtype=torch.float64)
    for part in rows.split(chunk):
        total += images[part].double().sum(0)
    return total / (255 * len(rows))


def spectrum(image: Tensor) -> Spectrum:
    """How the energy of [C, H, W], all channels together, is spread over the frequencies."""
    energy, radius = _energy(image), _radius(image)
    width = 1 / min(image.shape[-2:])
    ring = (radius / width).round().long()
    shares = torch.zeros(int(ring.max()) + 1, dtype=torch.float64)
    shares.index_add_(0, ring.flatten(), energy.flatten())
    total = energy.sum().clamp_min(1e-300)
    return Spectrum(torch.arange(len(shares)) * width, shares / total, float(energy[radius <= LOW].sum() / total))


def white_noise_low(shape: tuple[int, ...]) -> float:
    """The share of white noise's energy at low frequencies: that of the frequencies themselves."""
    return float((_radius(torch.empty(shape)) <= LOW).double().mean())


def alignment(delta: Tensor, direction: Tensor, level: float) -> tuple[float, float]:
    """The cosine of two images, and the |cosine| that a share of random-phase copies of the first stays below."""
    random = torch.randn(CONTROLS, *delta.shape[-2:], generator=generator("random phases"), dtype=torch.float64)
    spin = torch.fft.fft2(random)
    spin = spin / spin.abs()  # of a real image: the copies are real too; one spin for all channels keeps their colours
    copies = torch.fft.ifft2(torch.fft.fft2(delta)[None] * spin[:, None]).real
    cosines = torch.nn.functional.cosine_similarity(copies.flatten(1), direction.flatten()[None], dim=1)
    cosine = torch.nn.functional.cosine_similarity(delta.flatten(), direction.flatten(), dim=0)
    return float(cosine), float(cosines.abs().quantile(level))


def _energy(image: Tensor) -> Tensor:
    return torch.fft.fft2(image.double()).abs().square().sum(0)


def _radius(image: Tensor) -> Tensor:
    """The frequency of every coefficient, in cycles per pixel."""
    height, width = image.shape[-2:]
    vertical, horizontal = (torch.fft.fftfreq(n, dtype=torch.float64) for n in (height, width))
    return torch.hypot(vertical[:, None], horizontal[None])
